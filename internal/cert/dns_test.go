package cert_test

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// lookup asks a name server for the texts of a name.
func lookup(t *testing.T, server, name string) []string {
	t.Helper()
	m := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeTXT)
	answer, err := dns.Exchange(m, server)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, rr := range answer.Answer {
		if txt, ok := rr.(*dns.TXT); ok {
			all = append(all, strings.Join(txt.Txt, ""))
		}
	}
	slices.Sort(all)
	return all
}

const challengeName = "_acme-challenge.a.acme.test"

// exercise adds and removes records and compares what is there with what should be.
func exercise(t *testing.T, n *config.DNS, values func() []string) {
	t.Helper()
	z, err := cert.ZoneOf(n)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		do    func() error
		there []string
	}{
		{func() error { return z.Add(t.Context(), challengeName, "one") }, []string{"one"}},
		{func() error { return z.Add(t.Context(), challengeName, "two") }, []string{"one", "two"}},
		{func() error { return z.Remove(t.Context(), challengeName, "one") }, []string{"two"}},
		{func() error { return z.Remove(t.Context(), challengeName, "one") }, []string{"two"}},
		{func() error { return z.Remove(t.Context(), challengeName, "two") }, nil},
		{func() error { return z.Remove(t.Context(), challengeName, "two") }, nil},
	} {
		if err := step.do(); err != nil {
			t.Fatal(err)
		}
		if got := values(); !slices.Equal(got, step.there) {
			t.Errorf("there is %v, want %v", got, step.there)
		}
	}
}

func TestDNSUpdate(t *testing.T) {
	b := gatewaytest.NewBIND(t, "acme.test")
	n := config.DNS{Provider: config.DNSUpdate, ZoneID: "acme.test", Server: b.Address, KeyName: b.KeyName, KeyAlg: "hmac-sha256", Token: config.NewSecret(b.Secret)}
	exercise(t, &n, func() []string { return lookup(t, b.Address, challengeName) })
	for name, change := range map[string]func(*config.DNS){
		"another key":  func(n *config.DNS) { n.Token = config.NewSecret("YW5vdGhlciBzZWNyZXQ=") },
		"no key":       func(n *config.DNS) { n.Token = config.NewSecret("") },
		"another zone": func(n *config.DNS) { n.ZoneID = "other.test" },
		"no server":    func(n *config.DNS) { n.Server = "127.0.0.1:1" },
		"no base64":    func(n *config.DNS) { n.Token = config.NewSecret("%%%") },
	} {
		n := n
		change(&n)
		z, err := cert.ZoneOf(&n)
		if err != nil {
			t.Fatal(err)
		}
		err = z.Add(t.Context(), challengeName, "bad")
		if err == nil {
			t.Errorf("%s: no error", name)
		} else if secret := n.Token.Reveal(); secret != "" && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := lookup(t, b.Address, challengeName); len(got) != 0 {
		t.Errorf("there is %v", got)
	}
}

// service is the server side of a DNS service's API, with one zone.
type service struct {
	mu      sync.Mutex
	records map[string][2]string // by id: name, value
	next    int
	*httptest.Server
}

func newService(t *testing.T, serve func(s *service, w http.ResponseWriter, r *http.Request)) *service {
	s := &service{records: map[string][2]string{"other": {"_acme-challenge.b.acme.test", "one"}}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		serve(s, w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *service) values() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for _, r := range s.records {
		if r[0] == challengeName {
			all = append(all, r[1])
		}
	}
	slices.Sort(all)
	return all
}

// TestCloudflare runs their library against the part of their API that is used.
func TestCloudflare(t *testing.T) {
	s := newService(t, func(s *service, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fail := func(status int, text string) {
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"success":false,"errors":[{"code":%d,"message":%q}],"messages":[],"result":null}`, status, text)
		}
		if r.Header.Get("Authorization") != "Bearer token-canary" {
			fail(http.StatusForbidden, "Authentication error")
			return
		}
		path, ok := strings.CutPrefix(r.URL.Path, "/client/v4/zones/zone-1/dns_records")
		if !ok {
			fail(http.StatusNotFound, "no such zone")
			return
		}
		show := func(id string) map[string]any {
			return map[string]any{"id": id, "type": "TXT", "name": s.records[id][0], "content": s.records[id][1], "ttl": 120, "proxiable": false}
		}
		var result any
		switch {
		case r.Method == http.MethodPost && path == "":
			var in struct {
				Type, Name, Content string
				TTL                 int
			}
			if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Type != "TXT" || in.TTL != 120 {
				fail(http.StatusBadRequest, "bad record")
				return
			}
			value := strings.Trim(in.Content, `"`)
			s.next++
			id := fmt.Sprint("record-", s.next)
			s.records[id] = [2]string{in.Name, value}
			result = show(id)
		case r.Method == http.MethodGet && path == "":
			list := []any{}
			for _, id := range slices.Sorted(maps.Keys(s.records)) {
				if s.records[id][0] == r.URL.Query().Get("name.exact") && r.URL.Query().Get("type") == "TXT" {
					list = append(list, show(id))
				}
			}
			result = list
		case r.Method == http.MethodDelete && s.records[strings.TrimPrefix(path, "/")] != [2]string{}:
			id := strings.TrimPrefix(path, "/")
			delete(s.records, id)
			result = map[string]any{"id": id}
		default:
			fail(http.StatusNotFound, r.Method+" "+path)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"success": true, "errors": []any{}, "messages": []any{}, "result": result})
	})
	n := config.DNS{Provider: config.DNSCloudflare, ZoneID: "zone-1", Token: config.NewSecret("token-canary"), Endpoint: s.URL + "/client/v4"}
	exercise(t, &n, s.values)
	refused(t, &n)
}

// refused checks that a wrong token gives an error that does not show it.
func refused(t *testing.T, n *config.DNS) {
	t.Helper()
	bad := *n
	bad.Token = config.NewSecret("wrong:wrong-canary")
	z, err := cert.ZoneOf(&bad)
	if err != nil {
		t.Fatal(err)
	}
	if err := z.Add(t.Context(), challengeName, "bad"); err == nil || strings.Contains(err.Error(), "wrong-canary") {
		t.Errorf("error %v", err)
	}
}

// set is a resource record set in the XML of Route 53.
type set struct {
	Name, Type      string
	TTL             int
	ResourceRecords struct {
		ResourceRecord []struct{ Value string }
	}
}

// TestRoute53 runs Amazon's library against the part of the API that is used.
func TestRoute53(t *testing.T) {
	s := newService(t, func(s *service, w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/xml")
		const ns = ` xmlns="https://route53.amazonaws.com/doc/2013-04-01/"`
		fail := func(status int, code string) {
			w.WriteHeader(status)
			fmt.Fprintf(w, `<ErrorResponse%s><Error><Type>Sender</Type><Code>%s</Code><Message>no</Message></Error><RequestId>1</RequestId></ErrorResponse>`, ns, code)
		}
		if a := r.Header.Get("Authorization"); !strings.HasPrefix(a, "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/") || !strings.Contains(a, "/us-east-1/route53/aws4_request") {
			fail(http.StatusForbidden, "InvalidClientTokenId")
			return
		}
		rrset := func(name string) (x set) {
			x.Name, x.Type, x.TTL = name+".", "TXT", 120
			for _, id := range slices.Sorted(maps.Keys(s.records)) {
				if s.records[id][0] == name {
					x.ResourceRecords.ResourceRecord = append(x.ResourceRecords.ResourceRecord, struct{ Value string }{`"` + s.records[id][1] + `"`})
				}
			}
			return x
		}
		switch {
		case r.Method == http.MethodGet && r.URL.Path == "/2013-04-01/hostedzone/Z1/rrset":
			// The service lists from the name on: without records of its own, the next name comes.
			x := rrset(strings.TrimSuffix(r.URL.Query().Get("name"), "."))
			if len(x.ResourceRecords.ResourceRecord) == 0 {
				x = rrset("_acme-challenge.b.acme.test")
			}
			text, _ := xml.Marshal(struct {
				XMLName xml.Name `xml:"ResourceRecordSet"`
				set
			}{set: x})
			fmt.Fprintf(w, `<ListResourceRecordSetsResponse%s><ResourceRecordSets>%s</ResourceRecordSets><IsTruncated>false</IsTruncated><MaxItems>1</MaxItems></ListResourceRecordSetsResponse>`, ns, text)
		case r.Method == http.MethodPost && r.URL.Path == "/2013-04-01/hostedzone/Z1/rrset":
			var in struct {
				ChangeBatch struct {
					Changes struct {
						Change []struct {
							Action            string
							ResourceRecordSet set
						}
					}
				}
			}
			text, _ := io.ReadAll(r.Body)
			if err := xml.Unmarshal(text, &in); err != nil || len(in.ChangeBatch.Changes.Change) != 1 {
				fail(http.StatusBadRequest, "InvalidInput")
				return
			}
			c := in.ChangeBatch.Changes.Change[0]
			name := strings.TrimSuffix(c.ResourceRecordSet.Name, ".")
			have, want := rrset(name), c.ResourceRecordSet
			if c.Action == "DELETE" && !slices.Equal(have.ResourceRecords.ResourceRecord, want.ResourceRecords.ResourceRecord) {
				fail(http.StatusBadRequest, "InvalidChangeBatch")
				return
			}
			maps.DeleteFunc(s.records, func(_ string, r [2]string) bool { return r[0] == name })
			for _, v := range want.ResourceRecords.ResourceRecord {
				if c.Action == "UPSERT" {
					s.next++
					s.records[fmt.Sprint("record-", s.next)] = [2]string{name, strings.Trim(v.Value, `"`)}
				}
			}
			fmt.Fprintf(w, `<ChangeResourceRecordSetsResponse%s><ChangeInfo><Id>/change/C1</Id><Status>PENDING</Status><SubmittedAt>2026-01-01T00:00:00Z</SubmittedAt></ChangeInfo></ChangeResourceRecordSetsResponse>`, ns)
		default:
			fail(http.StatusNotFound, "NoSuchHostedZone")
		}
	})
	n := config.DNS{Provider: config.DNSRoute53, ZoneID: "Z1", Token: config.NewSecret("AKIDEXAMPLE:secret-canary"), Endpoint: s.URL}
	exercise(t, &n, s.values)
	refused(t, &n)
}
