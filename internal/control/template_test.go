package control_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/control"
)

const templateText = `{
  "worker_selector": {"match_labels": {"zone": "a"}},
  "containers": [{
    "name": "main", "image": "local:echo", "command": ["/echo"], "args": ["-v"], "env": [{"name": "A", "value": "b"}],
    "wakeup_probe": {"http_get": {"path": "/ready", "port": 80}, "timeout_seconds": 5},
    "volume_mounts": [{"name": "data", "mount_path": "/data"}], "resources": {"limits": [{"name": "cpu", "quantity": "1"}]}
  }],
  "volumes": [{"name": "data", "durable_dir": {}}, {"name": "info", "system_info": {"data_sources": [
    {"actor_metadata": {"items": [{"field": "ACTOR_METADATA_FIELD_UID", "path": "uid"}]}},
    {"trust_bundle": {"path": "ca.pem", "names": ["egress-mitm.ate.dev"]}}
  ]}}],
  "snapshot_config": {"on_commit": "SNAPSHOT_CONTENT_SCOPE_DATA", "storage_location": "s"},
  "sandbox_config": {"sandbox_class": "SANDBOX_CLASS_GVISOR", "config_name": "c"}
}`

// A template goes from its text over the wire into the store and back, and is the same.
func TestTemplates(t *testing.T) {
	s := newSystem(t)
	ctx := t.Context()
	ref := actor.Ref{Atespace: "demo", Name: "full"}
	want, err := control.ParseTemplate([]byte(templateText), ref)
	if err != nil {
		t.Fatal(err)
	}
	made, err := s.admin.CreateTemplate(ctx, want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.admin.GetTemplate(ctx, ref)
	if err != nil || cmp.Diff(made, got) != "" {
		t.Errorf("read: %v\n%s", err, cmp.Diff(made, got))
	}
	text, err := control.JSON(got)
	if err != nil {
		t.Fatal(err)
	}
	again, err := control.ParseTemplate(text, ref)
	if got.Meta = (actor.Meta{}); err != nil || cmp.Diff(want, again) != "" || cmp.Diff(want, got) != "" {
		t.Errorf("printed and read again: %v\n%s\n%s", err, cmp.Diff(want, again), cmp.Diff(want, got))
	}
	_, err = s.admin.CreateTemplate(ctx, want)
	wantCode(t, "again", err, actor.AlreadyExists)
	if all, err := s.admin.ListTemplates(ctx, "demo"); err != nil || len(all) != 2 || all[1].Ref != ref {
		t.Errorf("%+v, %v", all, err)
	}
	want.Atespace = "none"
	_, err = s.admin.CreateTemplate(ctx, want)
	wantCode(t, "in no atespace", err, actor.FailedPrecondition)
	_, err = s.admin.DeleteAtespace(ctx, "demo", actor.Terms{})
	wantCode(t, "an atespace that is not empty", err, actor.FailedPrecondition)
	s.create(t, a1)
	s.attach(t, "w1", 1, 1)
	for _, r := range []actor.Ref{ref, echo} {
		if _, err := s.admin.DeleteTemplate(ctx, r, actor.Terms{}); err != nil {
			t.Error(err)
		}
	}
	_, _, err = s.admin.ResumeActor(ctx, a1)
	wantCode(t, "resume without a template", err, actor.FailedPrecondition)
	if _, err := s.admin.DeleteActor(ctx, a1, actor.Terms{}); err != nil {
		t.Error(err)
	}
	if _, err := s.admin.DeleteAtespace(ctx, "demo", actor.Terms{}); err != nil {
		t.Error(err)
	}
	_, err = s.admin.GetAtespace(ctx, "demo")
	wantCode(t, "what is gone", err, actor.NotFound)
}

func TestParseTexts(t *testing.T) {
	ref := actor.Ref{Atespace: "demo", Name: "a1"}
	for name, tc := range map[string]struct{ text, want string }{
		"nothing":              {"", "unexpected token"},
		"another member":       {`{"container": []}`, `unknown field "container"`},
		"what is not carried":  {`{"containers":[{"name":"m","image":"i","security_context":{}}]}`, "not supported yet"},
		"a default policy":     {`{"containers":[{"name":"m","image":"i"}],"default_egress_policy":{}}`, "not supported yet"},
		"an image volume":      {`{"containers":[{"name":"m","image":"i"}],"volumes":[{"name":"v","image":{"reference":"x"}}]}`, "not supported yet"},
		"a large port":         {`{"containers":[{"name":"m","image":"i","wakeup_probe":{"http_get":{"path":"/","port":65616}}}]}`, "must be 1 to 65535"},
		"no containers":        {`{}`, "containers: are 0"},
		"more than can be one": {strings.Repeat(" ", 1<<20+1), "at most"},
	} {
		if _, err := control.ParseTemplate([]byte(tc.text), ref); err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "\u00a0", " "), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
	p, err := control.ParsePolicy([]byte(`{"rules":[{"https":{"hostnames":["a.test"]}}]}`), ref)
	if err != nil || p.Name != "default" || p.Atespace != "demo" || len(p.Rules) != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, text := range []string{`{"rules":[{}]}`, `{"rule":[]}`, `{"metadata":{"name":"other"}}`, `{"metadata":{"atespace":"other"}}`, `[]`} {
		if _, err := control.ParsePolicy([]byte(text), ref); err == nil {
			t.Errorf("%s is a policy", text)
		}
	}
}

// A volume with two sources is refused, though its members come in one message after the other: a decoder of a oneof would
// have kept the last.
func TestVolumeWithTwoSources(t *testing.T) {
	s := newSystem(t)
	own := s.credential(t, s.path("admin", "podidentity.podcert.ate.dev", cert.CredentialFile))
	conn, err := grpc.NewClient(s.Addr, grpc.WithTransportCredentials(credentials.NewTLS(s.config(t, own))), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	// Field 2 (durable_dir), then field 5 (system_info) with one trust bundle.
	raw := []byte{0x0a, 1, 'v', 0x12, 0, 0x2a, 13, 0x0a, 11, 0x12, 9, 0x12, 2, 'c', 'a', 0x1a, 3, 'x', '.', 'y'}
	v := &ateapi.Volume{}
	if err := proto.Unmarshal(raw, v); err != nil || v.GetDurableDir() == nil || v.GetSystemInfo().GetDataSources()[0].GetTrustBundle().GetPath() != "ca" {
		t.Fatalf("%v, %v", v, err)
	}
	make := func() error {
		_, err := ateapi.NewControlClient(conn).CreateActorTemplate(t.Context(), &ateapi.CreateActorTemplateRequest{ActorTemplate: &ateapi.ActorTemplate{
			Metadata: &ateapi.ResourceMetadata{Atespace: "demo", Name: "t"}, Containers: []*ateapi.Container{{Name: "m", Image: "i"}}, Volumes: []*ateapi.Volume{v},
		}})
		return err
	}
	if err := make(); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "exactly one") {
		t.Errorf("with two: %v", err)
	}
	v.DurableDir = nil
	if err := make(); err != nil {
		t.Errorf("with one: %v", err)
	}
}

// FuzzTemplate reads whatever there is: it is refused, or it is a template that stays the same when it is written and read.
func FuzzTemplate(f *testing.F) {
	f.Add([]byte(templateText))
	f.Add([]byte(`{"containers":[{"name":"m","image":"i"}]}`))
	ref := actor.Ref{Atespace: "demo", Name: "t"}
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := control.ParseTemplate(text, ref)
		if err != nil {
			return
		}
		printed, err := control.JSON(a)
		if err != nil {
			t.Fatal(err)
		}
		b, err := control.ParseTemplate(printed, ref)
		if err != nil || cmp.Diff(a, b) != "" {
			t.Errorf("%v\n%s", err, cmp.Diff(a, b))
		}
	})
}

// FuzzPolicyText is the same for policies.
func FuzzPolicyText(f *testing.F) {
	f.Add([]byte(`{"rules":[{"https":{"hostnames":["a.test"],"ports":{"all":{}},"effects":{"replace_headers":[{"header":"a","credential_uri":"ate-secret://a/b/c"}]}}}]}`))
	f.Add([]byte(`{"rules":[{"tls_passthrough":{"hostnames":["*"],"ports":{"numbers":[1,2]}}}]}`))
	ref := actor.Ref{Atespace: "demo", Name: "t"}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := control.ParsePolicy(text, ref)
		if err != nil {
			if faults := actor.Faults(nil); errors.As(err, &faults) && len(faults) == 0 {
				t.Error("an error without a fault")
			}
			return
		}
		if err := p.Validate("p", "demo"); err != nil {
			t.Errorf("what was read is not valid: %v", err)
		}
	})
}

// A page of templates is short, whatever is asked for: a thousand large ones would fit into no client, and not well into us.
func TestTemplatePages(t *testing.T) {
	s := newSystem(t)
	const n = 120 // and echo
	for i := range n {
		template := actor.Template{Ref: actor.Ref{Atespace: "demo", Name: fmt.Sprint("t", i)}, Containers: []actor.Container{{Name: "main", Image: "i"}}}
		if _, err := s.admin.CreateTemplate(t.Context(), template); err != nil {
			t.Fatal(err)
		}
	}
	own := s.credential(t, s.path("admin", "podidentity.podcert.ate.dev", cert.CredentialFile))
	conn, err := grpc.NewClient(s.Addr, grpc.WithTransportCredentials(credentials.NewTLS(s.config(t, own))), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	page, err := ateapi.NewControlClient(conn).ListActorTemplates(t.Context(), &ateapi.ListActorTemplatesRequest{Atespace: "demo", PageSize: 1000})
	if err != nil || len(page.GetActorTemplates()) != 50 || page.GetNextPageToken() == "" {
		t.Errorf("%d templates, then %q, %v", len(page.GetActorTemplates()), page.GetNextPageToken(), err)
	}
	if all, err := s.admin.ListTemplates(t.Context(), "demo"); err != nil || len(all) != n+1 {
		t.Errorf("%d templates of %d, %v", len(all), n+1, err)
	}
}
