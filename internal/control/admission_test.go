package control_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/egress"
)

// The rules of admission of the contract's section 2.6, row by row and by the wire: what is not admitted is InvalidArgument, names
// the field and changes nothing; what is, is read back with its defaults.
func TestSection26_Admission(t *testing.T) {
	s := newSystem(t)
	s.create(t, a1)
	effects := func(e egress.Effects) egress.Rule {
		return egress.Rule{HTTPS: &egress.WebRule{Hostnames: []string{"a.test"}, Effects: &e}}
	}
	header := func(name, prefix, uri string) egress.Rule {
		return effects(egress.Effects{ReplaceHeaders: []egress.CredentialHeader{{Header: name, Prefix: prefix, CredentialURI: uri}}})
	}
	web := func(names ...string) egress.Rule { return egress.Rule{HTTPS: &egress.WebRule{Hostnames: names}} }
	on := func(n int32) *egress.Ports { return &egress.Ports{Numbers: []int32{n}} }
	const uri = "ate-secret://class/provider/tail"
	good := egress.Policy{Name: "default", Atespace: "demo"}
	with := func(rules ...egress.Rule) egress.Policy { p := good; p.Rules = rules; return p }
	type row struct {
		name  string
		p     egress.Policy
		field string // of the fault; "" admitted
	}
	rows := []row{
		{"row 1 another name", egress.Policy{Name: "other", Atespace: "demo"}, "metadata.name"},
		{"row 1 another atespace", egress.Policy{Name: "default", Atespace: "other"}, "metadata.atespace"},
		{"row 2 no member", with(egress.Rule{}), "rules[0]"},
		{"row 5 the same twice", with(web("a.test"), web("a.test")), "rules[1].https.hostnames[0]"},
		{"row 5 https and tls_passthrough", with(web("a.test"), egress.Rule{Passthrough: &egress.PassthroughRule{Hostnames: []string{"a.test"}, Ports: on(443)}}), "rules[1].tls_passthrough.hostnames[0]"},
		{
			"row 5 both on all ports",
			with(egress.Rule{HTTPS: &egress.WebRule{Hostnames: []string{"*"}, Ports: &egress.Ports{All: true}}}, egress.Rule{Passthrough: &egress.PassthroughRule{Hostnames: []string{"*"}, Ports: &egress.Ports{All: true}}}),
			"rules[1].tls_passthrough.hostnames[0]",
		},
		{"row 5 http is another input", with(web("a.test"), egress.Rule{HTTP: &egress.WebRule{Hostnames: []string{"a.test"}, Ports: on(443)}}), ""},
		{"row 6 no token", with(header("a b", "", uri)), "replace_headers[0].header"},
		{"row 6 hop by hop", with(header("Connection", "", uri)), "replace_headers[0].header"},
		{"row 6 protected", with(header("Host", "", uri)), "replace_headers[0].header"},
		{
			"row 6 twice but for case",
			with(effects(egress.Effects{ReplaceHeaders: []egress.CredentialHeader{{Header: "X-Key", CredentialURI: uri}, {Header: "x-key", CredentialURI: uri}}})),
			"replace_headers[1].header",
		},
		{"row 7 a line end", with(header("A", "a\r\nb", uri)), "replace_headers[0].prefix"},
		{"row 7 zero", with(header("A", "\x00", uri)), "replace_headers[0].prefix"},
		{"row 8 the earlier scheme", with(header("A", "", "substrate-secret://class/provider/tail")), "replace_headers[0].credential_uri"},
		{"row 8 no tail", with(header("A", "", "ate-secret://class/provider")), "replace_headers[0].credential_uri"},
		{"row 9 no effect", with(effects(egress.Effects{})), "effects"},
		{"row 10 defaults", with(web("a.test"), egress.Rule{HTTP: &egress.WebRule{Hostnames: []string{"a.test"}}}), ""},
		{"row 10 a good one with everything", with(header("Authorization", "Bearer ", uri)), ""},
	}
	for _, n := range []string{"Upper.test", "a.test.", "1.2.3.4", "a.1", "bücher.test", strings.Repeat("a", 64) + ".test", "", "a_b.test"} {
		rows = append(rows, row{"row 3 " + n, with(web(n)), "rules[0].https.hostnames[0]"})
	}
	for _, n := range []string{"a.test:443", "https://a.test", "a.test/x", "[::1]", "::1", "a*.x", "*.*.x", "**", "a.*.x"} {
		rows = append(rows, row{"row 4 " + n, with(web(n)), "rules[0].https.hostnames[0]"})
	}
	for _, n := range []string{"*", "*.a.test", "xn--bcher-kva.example", strings.Repeat("a", 63) + ".test"} {
		rows = append(rows, row{"row 3 admitted " + n, with(web(n)), ""})
	}
	for _, tc := range rows {
		t.Run(tc.name, func(t *testing.T) {
			k, err := s.admin.CreatePolicy(t.Context(), a1, tc.p)
			if tc.field != "" {
				wantCode(t, "creating", err, actor.InvalidArgument)
				if err != nil && !strings.Contains(err.Error(), tc.field) {
					t.Errorf("%v does not name %s", err, tc.field)
				}
				_, err = s.admin.GetPolicy(t.Context(), a1)
				wantCode(t, "reading what was refused", err, actor.NotFound)
				return
			}
			got, rerr := s.admin.GetPolicy(t.Context(), a1)
			if d := cmp.Diff(tc.p.WithDefaults(), got.Policy); err != nil || rerr != nil || d != "" || got.UID != k.UID {
				t.Fatalf("%v, %v\n%s", err, rerr, d)
			}
			if _, err := s.admin.DeletePolicy(t.Context(), a1, actor.Terms{}); err != nil {
				t.Fatal(err)
			}
		})
	}
	// Two members of a rule exist on the wire only; the JSON of the CLI is the same message.
	t.Run("row 2 two members", func(t *testing.T) {
		if _, err := control.ParsePolicy([]byte(`{"rules":[{"http":{"hostnames":["a.test"]},"https":{"hostnames":["a.test"]}}]}`), a1); err == nil {
			t.Error("accepted")
		}
	})
}

// The life of a policy after section 2.6: when there is none, nothing but creation is possible.
func TestSection26_Lifecycle(t *testing.T) {
	s := newSystem(t)
	ctx, c := t.Context(), s.admin
	p := egress.Policy{Name: "default", Atespace: "demo"}
	_, err := c.CreatePolicy(ctx, a1, p)
	wantCode(t, "create without the actor", err, actor.FailedPrecondition)
	s.create(t, a1)
	_, err = c.GetPolicy(ctx, a1)
	wantCode(t, "get", err, actor.NotFound)
	_, err = c.UpdatePolicy(ctx, a1, p, actor.Terms{UID: "x", Version: 1})
	wantCode(t, "update", err, actor.NotFound)
	_, err = c.DeletePolicy(ctx, a1, actor.Terms{})
	wantCode(t, "delete", err, actor.NotFound)
	k, err := c.CreatePolicy(ctx, a1, p)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.CreatePolicy(ctx, a1, p)
	wantCode(t, "create again", err, actor.AlreadyExists)
	_, err = c.UpdatePolicy(ctx, a1, p, actor.Terms{Version: k.Version})
	wantCode(t, "update without a uid", err, actor.InvalidArgument)
	_, err = c.UpdatePolicy(ctx, a1, p, actor.Terms{UID: k.UID})
	wantCode(t, "update without a version", err, actor.InvalidArgument)
	_, err = c.UpdatePolicy(ctx, a1, p, actor.Terms{UID: k.UID, Version: k.Version + 1})
	wantCode(t, "update another version", err, actor.Aborted)
	_, err = c.UpdatePolicy(ctx, a1, p, actor.Terms{UID: "other", Version: k.Version})
	wantCode(t, "update another one", err, actor.Aborted)
	if _, err := c.DeleteActor(ctx, a1, actor.Terms{}); err != nil {
		t.Fatal(err)
	}
	_, err = c.GetPolicy(ctx, a1)
	wantCode(t, "get with the actor gone", err, actor.NotFound)
	s.create(t, a1)
	_, err = c.GetPolicy(ctx, a1)
	wantCode(t, "get of who was made again", err, actor.NotFound)
}
