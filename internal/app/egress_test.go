package app_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/egress"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

const worldHosts = `93.184.216.34 api.example.com other.example.com web.example.org
93.184.216.35 raw.example.org
169.254.169.254 metadata.example.com
127.0.0.1 loop.example.com
10.1.2.3 inner.example.com
`

const everythingAllowed = `{"http":{"hostnames":["*"]}},{"https":{"hostnames":["*"]}}`

func fetched(t *testing.T, c *http.Client, url string) (int, string, http.Header) {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(body), resp.Header
}

func one(p *http.Protocols)   { p.SetHTTP1(true) }
func two(p *http.Protocols)   { p.SetHTTP2(true) }
func prior(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }

// What a policy allows gets through, on every leg and in every protocol, and what the origin sees is the actor's request and no
// more.
func TestEgressAllowed(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	clear, secure := w.origin("web.example.org", "93.184.216.34:80", false), w.origin("api.example.com", "93.184.216.34:443", true)
	p := w.run("a1")
	p.may(`{"http":{"hostnames":["web.example.org"]}},{"https":{"hostnames":["api.example.com"]}}`)
	for _, tc := range []struct {
		url, dialed string
		protocols   func(*http.Protocols)
		want        string
	}{
		{"http://web.example.org/a?secret=1", "93.184.216.34:80", one, "web.example.org HTTP/1.1 0"},
		{"http://web.example.org/a", "1.1.1.1:80", prior, "web.example.org HTTP/1.1 0"}, // the address dialed plays no part
		{"https://api.example.com/b", "93.184.216.34:443", one, "api.example.com HTTP/2.0 0"},
		{"https://api.example.com/b", "[2001:db8::1]:443", two, "api.example.com HTTP/2.0 0"},
		{"https://API.Example.com/b", "93.184.216.34:443", two, "api.example.com HTTP/2.0 0"},
	} {
		status, body, head := fetched(t, p.httpClient(tc.dialed, tc.protocols), tc.url)
		if status != 200 || body != tc.want || head.Get("Alt-Svc") != "" {
			t.Errorf("%s: %d %q, %v", tc.url, status, body, head)
		}
	}
	for _, o := range []*origin{clear, secure} {
		r := o.last.Load()
		for _, field := range []string{"X-Forwarded-For", "X-Real-Ip", "X-Forwarded-Proto", "X-Request-Id", "Via", "Forwarded"} {
			if r.Header.Get(field) != "" {
				t.Errorf("%s is told %s", o.name, field)
			}
		}
	}
	for _, r := range w.audit(10) {
		if r.Verdict != "allow" || r.Reason != egress.Allowed || r.Atespace != "demo" || r.Actor != "a1" || r.UID != p.uid || r.Worker != "w1" || strings.Contains(r.Path, "secret") {
			t.Errorf("audit: %+v", r)
		}
		if r.Leg != egress.LegConnect && (r.Status != 200 || r.Rule == nil || r.PolicyVersion == 0 || r.Upstream == "" || r.BytesDown == 0) {
			t.Errorf("audit of a request: %+v", r)
		}
	}
}

// Every refusal, with its line in the audit log, and without a dial.
func TestKF_EGR_07_15_EgressRefused(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	canary := w.origin("metadata", "169.254.169.254:80", false)
	w.origin("loop", "127.0.0.1:80", false)
	w.origin("inner", "10.1.2.3:80", false)
	clear, secure := w.origin("web.example.org", "93.184.216.34:80", false), w.origin("api.example.com", "93.184.216.34:443", true)
	p := w.run("a1")
	p.may(`{"http":{"hostnames":["web.example.org","metadata.example.com","loop.example.com","inner.example.com"]}},{"https":{"hostnames":["api.example.com"]}}`)
	lines := 0
	next := func() egress.Record {
		lines += 2
		all := w.audit(lines)
		return all[len(all)-1]
	}
	for _, tc := range []struct {
		name, url, dialed string
		reason            egress.Reason
	}{
		{"by name", "http://other.example.com/", "93.184.216.34:80", egress.NoRule},
		{"KF_EGR_07 a name for TLS, in clear text", "http://api.example.com/", "93.184.216.34:80", egress.OtherKind},
		{"another port", "http://web.example.org/", "93.184.216.34:8080", egress.OtherPort},
		{"metadata", "http://metadata.example.com/", "169.254.169.254:80", egress.AddressDenied},
		{"loopback", "http://loop.example.com/", "93.184.216.34:80", egress.AddressDenied},
		{"private", "http://inner.example.com/", "93.184.216.34:80", egress.AddressDenied},
		{"an address", "http://169.254.169.254/latest/meta-data", "169.254.169.254:80", egress.NoRule},
	} {
		status, body, _ := fetched(t, p.httpClient(tc.dialed, one), tc.url)
		if status != 403 || !strings.Contains(body, `"error":"egress denied","code":"egress_denied"`) {
			t.Errorf("%s: %d %s", tc.name, status, body)
		}
		if r := next(); r.Verdict != "deny" || r.Reason != tc.reason || r.Status != 403 || !strings.Contains(body, r.ID) {
			t.Errorf("%s: audit %+v", tc.name, r)
		}
	}
	_, exposition := ask(t, w.gateway.Addr("management"), "/api/gateway/metrics")
	for series, want := range map[string]float64{
		`gateway_egress_decisions_total{entrypoint="egress",leg="cleartext",reason="address_denied"}`: 3,
		`gateway_egress_decisions_total{entrypoint="egress",leg="connect",reason="allowed"}`:          7,
		`gateway_egress_audit_lost_total{entrypoint="egress"}`:                                        0,
	} {
		if got := gatewaytest.Metric(exposition, series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
	// By name, in TLS: closed.
	if status, body, _ := fetched(t, p.httpClient("93.184.216.34:443", one), "https://other.example.com/"); status != 0 {
		t.Errorf("TLS for another name: %d %s", status, body)
	}
	if r := next(); r.Reason != egress.NoRule || r.SNI != "other.example.com" || r.Leg != egress.LegUnknown {
		t.Errorf("TLS for another name: %+v", r)
	}
	// A Host that is not the SNI.
	c := p.httpClient("93.184.216.34:443", one)
	req, err := http.NewRequest("GET", "https://api.example.com/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "other.example.com"
	resp, err := c.Do(req)
	if err != nil || resp.StatusCode != 403 {
		t.Fatalf("fronting: %v %v", resp, err)
	}
	_ = resp.Body.Close()
	if r := next(); r.Reason != egress.SNIMismatch || r.Authority != "other.example.com" || r.SNI != "api.example.com" {
		t.Errorf("fronting: %+v", r)
	}
	if d := w.routes.dialed(); len(d) > 0 || canary.seen.Load()+clear.seen.Load()+secure.seen.Load() > 0 {
		t.Errorf("dialed %v", d)
	}
}

// Raw bytes inside of a tunnel, and what comes of them.
func TestEgressRawRefusals(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldHosts, "")
	o := w.origin("web.example.org", "93.184.216.34:80", false)
	p := w.run("a1")
	p.may(everythingAllowed)
	for _, tc := range []struct {
		name, bytes string
		status      int
		reason      egress.Reason
	}{
		{"KF_EGR_11 nested CONNECT", "CONNECT web.example.org:80 HTTP/1.1\r\nHost: web.example.org:80\r\n\r\n", 403, egress.NestedConnect},
		{
			"KF_EGR_14 WebSocket", "GET / HTTP/1.1\r\nHost: web.example.org\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
			403, egress.UpgradeRefused,
		},
		{"another upgrade", "GET / HTTP/1.1\r\nHost: web.example.org\r\nConnection: Upgrade\r\nUpgrade: foo/2\r\n\r\n", 403, egress.UpgradeRefused},
		{"X23 no Host", "GET / HTTP/1.0\r\n\r\n", 400, egress.AuthorityInvalid},
		{"X24 another target", "GET http://web.example.org/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n", 403, egress.AuthorityMismatch},
		{"KF_EGR_02 an odd address", "GET / HTTP/1.1\r\nHost: 0x7f.1\r\n\r\n", 400, egress.AuthorityInvalid},
		{"two Hosts", "GET / HTTP/1.1\r\nHost: web.example.org\r\nHost: web.example.org\r\n\r\n", 400, egress.RequestInvalid},
		{"smuggling", "POST / HTTP/1.1\r\nHost: web.example.org\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400, egress.RequestInvalid},
		{"nothing", "", 0, egress.FirstBytesLate},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := len(w.audit(0))
			c, status := p.tunnel("93.184.216.34:80")
			defer func() { _ = c.Close() }()
			if status != 200 {
				t.Fatalf("CONNECT: %d", status)
			}
			fmt.Fprint(c, tc.bytes)
			head := make([]byte, 12)
			n, _ := io.ReadFull(c, head)
			if want := fmt.Sprintf("HTTP/1.1 %d", tc.status); tc.status > 0 && string(head[:n]) != want || tc.status == 0 && n > 0 {
				t.Errorf("answered %q", head[:n])
			}
			if r := w.audit(before + 2)[before+1]; r.Reason != tc.reason || r.Verdict != "deny" {
				t.Errorf("audit: %+v", r)
			}
		})
	}
	if d := w.routes.dialed(); len(d) > 0 || o.seen.Load() > 0 {
		t.Errorf("dialed %v", d)
	}
}

// What is passed through stays closed: the origin's own certificate reaches the actor, which trusts it.
func TestEgressPassthrough(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	o := w.origin("raw.example.org", "93.184.216.35:8443", true)
	p := w.run("a1")
	p.may(`{"tls_passthrough":{"hostnames":["raw.example.org","inner.example.com"],"ports":{"numbers":[8443]}}}`)
	dial := func(name string, roots []byte) error {
		c, status := p.tunnel("1.2.3.4:8443")
		defer func() { _ = c.Close() }()
		if status != 200 {
			t.Fatalf("CONNECT: %d", status)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(roots)
		s := tls.Client(c, &tls.Config{ServerName: name, RootCAs: pool})
		if err := s.Handshake(); err != nil {
			return err
		}
		fmt.Fprintf(s, "GET / HTTP/1.1\r\nHost: anything\r\nConnection: close\r\n\r\n")
		answer, err := io.ReadAll(s)
		if err == nil && !strings.Contains(string(answer), "raw.example.org HTTP/1.1") {
			err = fmt.Errorf("answered %q", answer)
		}
		return err
	}
	if err := dial("raw.example.org", w.origins.Bundle()); err != nil {
		t.Fatal(err)
	}
	r := w.audit(2)[1]
	if r.Leg != egress.LegPassthrough || r.Verdict != "allow" || r.SNI != "raw.example.org" || r.Upstream == "" || r.BytesUp == 0 || r.BytesDown == 0 {
		t.Errorf("audit: %+v", r)
	}
	if o.seen.Load() != 1 {
		t.Errorf("the origin has seen %d requests", o.seen.Load())
	}
	if err := dial("inner.example.com", w.origins.Bundle()); err == nil {
		t.Error("a name with a private address was passed through")
	}
	if r := w.audit(4)[3]; r.Reason != egress.AddressDenied || r.Verdict != "deny" || !strings.Contains(r.Detail, "10.1.2.3") {
		t.Errorf("audit: %+v", r)
	}
}

// Without a policy, with one that allows nothing, in another state and with another's certificate there is no tunnel.
func TestEgressAdmission(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldHosts, "max_tunnels_per_actor = 2")
	p := w.run("a1")
	lines := 0
	want := func(what, dialed string, status int, reason egress.Reason) net.Conn {
		t.Helper()
		c, got := p.tunnel(dialed)
		lines++
		r := w.audit(lines)[lines-1]
		if got != status || r.Reason != reason || r.Leg != egress.LegConnect {
			t.Errorf("%s: %d, %+v", what, got, r)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	const dialed = "93.184.216.34:80"
	want("I14 without a policy", dialed, 403, egress.PolicyNone)
	p.may("")
	gatewaytest.Until(t, "the policy counts", func() bool {
		_, got := p.tunnel(dialed)
		lines++
		return got == 403 && w.audit(lines)[lines-1].Reason == egress.PolicyEmpty
	})
	p.may(everythingAllowed)
	gatewaytest.Until(t, "the policy counts", func() bool {
		c, got := p.tunnel(dialed)
		_ = c.Close()
		lines++
		return got == 200
	})
	lines++ // of the tunnel that has carried nothing
	w.audit(lines)
	gatewaytest.Until(t, "the tunnel has ended", func() bool {
		_, open := w.gateway.EgressGateway("egress").Actors()
		return open == 0
	})
	want("X12 a name", "web.example.org:80", 403, egress.DialedInvalid)
	for _, what := range []string{"one", "two"} { // with a request, since one that carries nothing ends
		c := want(what, dialed, 200, egress.Allowed)
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: web.example.org\r\n\r\n")
		if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 502 {
			t.Errorf("%s: nobody is there: %v %v", what, resp, err)
		}
		lines++
		w.audit(lines)
	}
	want("I5 three", dialed, 503, egress.LimitTunnels)
	if _, err := w.admin.SuspendActor(t.Context(), p.ref); err != nil {
		t.Fatal(err)
	}
	want("X13 suspended", dialed, 403, egress.ActorNotRunning)
	if _, err := w.admin.DeleteActor(t.Context(), p.ref, actor.Terms{AnyState: true}); err != nil {
		t.Fatal(err)
	}
	want("deleted", dialed, 403, egress.ActorUnknown)
	w.must(w.plane.Close())
	want("I29 nobody knows", dialed, 503, egress.ActorUnavailable)
}

// I15, I27: each request on a connection is decided anew, by the policy of the last second.
func TestI15_I27_EgressKeepAlive(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldHosts, "")
	w.origin("web.example.org", "93.184.216.34:80", false)
	p := w.run("a1")
	p.may(`{"http":{"hostnames":["web.example.org"]}}`)
	c, status := p.tunnel("93.184.216.34:80")
	if status != 200 {
		t.Fatal(status)
	}
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	ask := func(host string) int {
		fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	for i, host := range []string{"web.example.org", "other.example.com", "web.example.org"} {
		if got := ask(host); got != []int{200, 403, 200}[i] {
			t.Errorf("%s: %d", host, got)
		}
	}
	began := time.Now()
	if _, err := w.admin.DeletePolicy(t.Context(), p.ref, actor.Terms{}); err != nil {
		t.Fatal(err)
	}
	gatewaytest.Until(t, "the policy is gone", func() bool { return ask("web.example.org") == 403 })
	if d := time.Since(began); d > 5*time.Second { // one, and a slow machine
		t.Errorf("a policy that is gone has counted for %s", d)
	}
}

// I13: two actors with opposite policies, over the same names, never get what the other may have.
func TestI13_EgressActorsApart(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	w.origin("web.example.org", "93.184.216.34:80", false)
	w.origin("api.example.com", "93.184.216.34:443", true)
	a, b := w.run("a1"), w.run("a2")
	a.may(`{"http":{"hostnames":["web.example.org"]}}`)
	b.may(`{"https":{"hostnames":["api.example.com"]}}`)
	var all sync.WaitGroup
	for i := range 60 {
		who, clear := a, i%4 < 2
		if i%2 == 1 {
			who = b
		}
		all.Go(func() {
			url, dialed := "https://api.example.com/", "93.184.216.34:443"
			if clear {
				url, dialed = "http://web.example.org/", "93.184.216.34:80"
			}
			c := who.httpClient(dialed, one)
			resp, err := c.Get(url)
			may := clear == (who == a)
			if ok := err == nil && resp.StatusCode == 200; ok != may {
				t.Errorf("%s to %s: %v %v", who.ref, url, resp, err)
			}
			if err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	all.Wait()
	for _, r := range w.audit(120) {
		if may := r.Leg == egress.LegConnect || (r.Authority == "web.example.org") == (r.UID == a.uid); (r.Verdict == "allow") != may {
			t.Errorf("audit: %+v", r)
		}
	}
}

// I20, KF_EGR_13: an origin that does not prove its name is not talked to.
func TestI20_EgressOriginProves(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	o := w.origin("another.example.com", "93.184.216.34:443", true)
	p := w.run("a1")
	p.may(everythingAllowed)
	status, body, _ := fetched(t, p.httpClient("93.184.216.34:443", two), "https://api.example.com/")
	if r := w.audit(2)[1]; status != 502 || !strings.Contains(body, `"code":"tls_failed"`) || r.Code != "tls_failed" || r.Verdict != "allow" || o.seen.Load() > 0 {
		t.Errorf("%d %s, %+v", status, body, r)
	}
	if strings.Contains(body, "93.184") || strings.Contains(body, "x509") { // I21
		t.Errorf("the actor learns %s", body)
	}
}

// Explaining a call says what the gateway then does, and changes nothing.
func TestEgressExplain(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	w.origin("web.example.org", "93.184.216.34:80", false)
	w.origin("api.example.com", "93.184.216.34:443", true)
	p := w.run("a1")
	p.may(`{"http":{"hostnames":["web.example.org"]}},{"https":{"hostnames":["*.example.com"]}}`)
	before, err := w.admin.GetActor(t.Context(), p.ref)
	w.must(err)
	lines := 0
	for _, url := range []string{
		"http://web.example.org/", "http://WEB.example.org:80/", "http://web.example.org:8080/", "http://api.example.com/", "http://1.2.3.4/", "http://127.1/",
		"https://api.example.com/", "https://api.example.com:8443/", "https://web.example.org/", "https://a.api.example.com/", "https://1.2.3.4/",
	} {
		call, err := egress.ParseCall("GET", url)
		w.must(err)
		kept, err := w.admin.GetPolicy(t.Context(), p.ref)
		steps := egress.Explain(egress.AdmitActor(p.ref, before, nil), egress.Stand("demo", kept, err), call)
		said := steps[len(steps)-1]

		resp, err := p.httpClient(fmt.Sprintf("93.184.216.34:%d", call.Port), one).Get(url)
		if err == nil {
			_ = resp.Body.Close()
		}
		lines += 2
		r := w.audit(lines)[lines-1]
		if r.Reason != said.Reason || r.Leg != said.Leg || (err == nil && resp.StatusCode == 200) != said.OK() {
			t.Errorf("%s: explained as %s %s, and the gateway says %+v", url, said.Leg, said.Reason, r)
		}
	}
	if after, err := w.admin.GetActor(t.Context(), p.ref); err != nil || after.Version != before.Version {
		t.Errorf("the actor has changed: %+v, %v", after, err)
	}
}

// I9, KF_EGR_03, KF_EGR_04: whatever the policy says of names, and whatever names lead to, some addresses are not dialed; of a name
// with several addresses the others are.
func TestI9_KF_EGR_03_04_EgressAddresses(t *testing.T) {
	denied := []string{
		"127.0.0.1", "10.0.0.1", "169.254.169.254", "100.64.0.1", "192.0.0.1", "198.18.0.1", "0.0.0.0", "172.16.0.1", "192.168.1.1", "224.0.0.1", "255.255.255.255",
		"::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "168.63.129.16", "64:ff9b::a00:1", "::ffff:10.0.0.1", "2002:a00:1::", "ff02::1",
		"93.184.216.77", // by deny_cidrs
	}
	var hosts strings.Builder
	for i, a := range denied {
		fmt.Fprintf(&hosts, "%s n%d.example.com\n", a, i)
	}
	hosts.WriteString("127.0.0.1 mixed.example.com\n::1 mixed.example.com\n93.184.216.34 mixed.example.com\n10.9.9.9 inside.example.com\n")
	w := newWorld(t, hosts.String(), `
    deny_cidrs    = ["93.184.216.77"]
    allow_private = ["10.9.0.0/16"]`)
	w.origin("mixed", "93.184.216.34:80", false)
	w.origin("inside", "10.9.9.9:80", false)
	p := w.run("a1")
	p.may(everythingAllowed)
	lines := 0
	want := func(host string, status int, reason egress.Reason) {
		t.Helper()
		c := p.httpClient("93.184.216.34:80", one)
		got, body, _ := fetched(t, c, "http://"+host+"/")
		c.CloseIdleConnections() // with its tunnel, and that with the connection to the origin
		lines += 2
		if r := w.audit(lines)[lines-1]; got != status || r.Reason != reason {
			t.Errorf("%s: %d %s, %+v", host, got, body, r)
		}
	}
	for i, a := range denied {
		want(fmt.Sprintf("n%d.example.com", i), 403, egress.AddressDenied)
		if strings.Contains(a, ":") {
			a = "[" + a + "]"
		}
		want(a, 403, egress.AddressDenied) // as an address, too
	}
	if d := w.routes.dialed(); len(d) > 0 {
		t.Errorf("dialed %v", d)
	}
	want("mixed.example.com", 200, egress.Allowed)
	want("inside.example.com", 200, egress.Allowed)
	if d := w.routes.dialed(); !slices.Equal(d, []string{"93.184.216.34:80", "10.9.9.9:80"}) {
		t.Errorf("dialed %v", d)
	}
	w.write("hosts", "127.0.0.1 mixed.example.com\n") // the name leads elsewhere from now on
	gatewaytest.Until(t, "the file is read again", func() bool {
		c := p.httpClient("93.184.216.34:80", one)
		defer c.CloseIdleConnections()
		got, _, _ := fetched(t, c, "http://mixed.example.com/")
		return got == 403
	})
}
