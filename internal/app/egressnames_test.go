package app_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"testing"

	"github.com/sluice-proxy/sluice/internal/egress"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// said sends a request through a new tunnel as it is, and returns the status of the answer and the line about it.
func (p *player) said(dialed, text string) (int, egress.Record) {
	p.w.t.Helper()
	before := len(p.w.audit(0))
	c, status := p.tunnel(dialed)
	defer func() { _ = c.Close() }()
	if status != 200 {
		p.w.t.Fatalf("CONNECT: %d", status)
	}
	_, err := io.WriteString(c, text)
	p.w.must(err)
	head := make([]byte, 12)
	if _, err := io.ReadFull(c, head); err != nil {
		return 0, p.w.audit(before + 2)[before+1]
	}
	_ = c.Close() // a request that is allowed has its line when it has ended
	_, err = fmt.Sscanf(string(head), "HTTP/1.1 %d", &status)
	p.w.must(err)
	return status, p.w.audit(before + 2)[before+1]
}

func closing(host string) string {
	return "GET / HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
}

// However a name is spelled, it is decided alike, and dialed as what it is.
func TestKF_EGR_01_Spellings(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldHosts+"93.184.216.34 xn--bcher-kva.example\n", "")
	w.origin("clear", "93.184.216.34:80", false)
	w.tlsOrigin("93.184.216.34:443", func(*tls.Config) {}, "api.example.com")
	p := w.run("a1")
	p.may(`{"http":{"hostnames":["web.example.org","xn--bcher-kva.example"]}},{"https":{"hostnames":["api.example.com"]}}`)
	for _, tc := range []struct {
		host   string
		status int
		reason egress.Reason
	}{
		{"web.example.org", 200, egress.Allowed},
		{"WEB.Example.ORG", 200, egress.Allowed},
		{"web.example.org.", 200, egress.Allowed},
		{"Web.example.org.:80", 200, egress.Allowed},
		{"XN--Bcher-KVA.example", 200, egress.Allowed},
		{"xn--bcher-kva.example.", 200, egress.Allowed},
		{"b\xc3\xbccher.example", 400, egress.RequestInvalid}, // the other spelling is none on the wire
		{"web.example.org..", 400, egress.AuthorityInvalid},
		{"other.example.com", 403, egress.NoRule},
		{"OTHER.Example.com", 403, egress.NoRule},
		{"other.example.com.", 403, egress.NoRule},
		{"other.example.com:80", 403, egress.NoRule},
	} {
		if status, r := p.said("93.184.216.34:80", closing(tc.host)); status != tc.status || r.Reason != tc.reason {
			t.Errorf("%q: %d %+v", tc.host, status, r)
		}
	}
	for _, sni := range []string{"api.example.com", "API.Example.COM"} {
		for _, host := range []string{"api.example.com", "Api.Example.com.", "api.example.com:443"} {
			c, status := p.tunnel("93.184.216.34:443")
			if status != 200 {
				t.Fatalf("CONNECT: %d", status)
			}
			s := tls.Client(c, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
			_, err := io.WriteString(s, closing(host))
			w.must(err)
			answer, _ := io.ReadAll(s)
			if !bytes.HasPrefix(answer, []byte("HTTP/1.1 200")) {
				t.Errorf("SNI %s, Host %s: %.100q", sni, host, answer)
			}
			_ = c.Close()
		}
	}
}

// A host in brackets is an address or nothing, and an address in another notation is nothing.
func TestKF_EGR_02_Brackets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldHosts, "")
	p := w.run("a1")
	p.may(everythingAllowed)
	for host, want := range map[string]struct {
		status int
		reason egress.Reason
	}{
		"[example.com]": {400, egress.RequestInvalid}, "[web.example.org]:80": {400, egress.RequestInvalid}, "[127.0.0.1]": {400, egress.RequestInvalid},
		"[::1": {400, egress.RequestInvalid}, "0x7f.1": {400, egress.AuthorityInvalid}, "2130706433": {400, egress.AuthorityInvalid}, "127.1": {400, egress.AuthorityInvalid},
		"[::1]": {403, egress.AddressDenied}, "[::ffff:127.0.0.1]": {403, egress.AddressDenied}, "127.0.0.1": {403, egress.AddressDenied},
	} {
		if status, r := p.said("93.184.216.34:80", closing(host)); status != want.status || r.Reason != want.reason {
			t.Errorf("Host %s: %d %+v", host, status, r)
		}
	}
	for _, target := range []string{"[example.com]:80", "0x7f.1:80", "2130706433:80", "127.1:80", "example.com:80"} {
		if _, status := p.tunnel(target); status != 403 && status != 400 {
			t.Errorf("CONNECT %s: %d", target, status)
		}
	}
	if d := w.routes.dialed(); len(d) > 0 {
		t.Errorf("dialed %v", d)
	}
}

// Inside TLS that was opened for a name, another one is refused whatever comes before and after it, and a name that may not be
// opened is not, whatever would be asked for inside.
func TestKF_EGR_05_Fronting(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "93.184.216.34 a.example.com b.example.com\n", "")
	o := w.tlsOrigin("93.184.216.34:443", func(*tls.Config) {}, "a.example.com", "b.example.com")
	p := w.run("a1")
	for _, rules := range []string{`{"https":{"hostnames":["a.example.com"]}}`, `{"https":{"hostnames":["a.example.com","b.example.com"]}}`} {
		p.may(rules)
		for name, protocols := range map[string]func(*http.Protocols){"HTTP/1.1": one, "HTTP/2": two} {
			c, before := p.httpClient("93.184.216.34:443", protocols), o.seen.Load()
			for i, host := range []string{"a.example.com", "b.example.com", "a.example.com", "b.example.com:443"} {
				req, err := http.NewRequest("GET", "https://a.example.com/", nil)
				w.must(err)
				req.Host = host
				resp, err := c.Do(req)
				w.must(err)
				_ = resp.Body.Close()
				if want := []int{200, 403}[i%2]; resp.StatusCode != want {
					t.Errorf("%s: %s inside a.example.com: %s", name, host, resp.Status)
				}
			}
			if n := o.seen.Load() - before; n != 2 {
				t.Errorf("%s: the origin has seen %d requests", name, n)
			}
			c.CloseIdleConnections()
		}
	}
	p.may(`{"https":{"hostnames":["a.example.com"]}}`)
	c := p.httpClient("93.184.216.34:443", one)
	req, err := http.NewRequest("GET", "https://b.example.com/", nil)
	w.must(err)
	req.Host = "a.example.com"
	gatewaytest.Until(t, "the policy counts", func() bool {
		resp, err := c.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			c.CloseIdleConnections()
		}
		return err != nil
	})
	gatewaytest.Until(t, "the refusal is noted", func() bool {
		return slices.ContainsFunc(w.audit(0), func(r egress.Record) bool {
			return r.Reason == egress.NoRule && r.SNI == "b.example.com" && r.Verdict == "deny"
		})
	})
}

// patched sends another text of the same length in the place of one.
type patched struct {
	net.Conn
	from, to string
}

func (c patched) Write(b []byte) (int, error) {
	return c.Conn.Write(bytes.ReplaceAll(b, []byte(c.from), []byte(c.to)))
}

// TLS that does not say for whom it is, or says so by an address, is closed with its reason, and nobody is dialed.
func TestKF_EGR_10_WithoutName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldHosts, "")
	p := w.run("a1")
	p.may(`{"https":{"hostnames":["*"]}}`)
	for _, tc := range []struct {
		name, sni, patch string
		reason           egress.Reason
	}{
		{"none", "", "", egress.SNIMissing},
		{"an address", "aaa.bbb.ccc.ddd", "169.254.169.254", egress.SNIInvalid},
		{"with a dot too many", "aaa.example.comx", "aaa.example.com.", egress.HelloInvalid},
	} {
		before := len(w.audit(0))
		c, status := p.tunnel("93.184.216.34:443")
		if status != 200 {
			t.Fatalf("CONNECT: %d", status)
		}
		if err := tls.Client(patched{c, tc.sni, tc.patch}, &tls.Config{ServerName: tc.sni, InsecureSkipVerify: true}).Handshake(); err == nil {
			t.Errorf("%s: opened", tc.name)
		}
		_ = c.Close()
		if r := w.audit(before + 2)[before+1]; r.Reason != tc.reason || r.Verdict != "deny" {
			t.Errorf("%s: %+v", tc.name, r)
		}
	}
	if d := w.routes.dialed(); len(d) > 0 {
		t.Errorf("dialed %v", d)
	}
}

// A CONNECT and a WebSocket handshake inside a tunnel are refused at once on each leg, and reach nobody.
func TestKF_EGR_11_14_NoWayFurther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldHosts, "")
	clear, secure := w.origin("web.example.org", "93.184.216.34:80", false), w.origin("api.example.com", "93.184.216.34:443", true)
	p := w.run("a1")
	p.may(everythingAllowed)
	for _, tc := range []struct {
		name, scheme, host, dialed string
		protocols                  func(*http.Protocols)
	}{
		{"clear text", "http", "web.example.org", "93.184.216.34:80", one},
		{"HTTP/2 in clear text", "http", "web.example.org", "93.184.216.34:80", prior},
		{"TLS", "https", "api.example.com", "93.184.216.34:443", one},
		{"HTTP/2", "https", "api.example.com", "93.184.216.34:443", two},
	} {
		for _, to := range []string{tc.host, "other.example.com"} {
			before := len(w.audit(0))
			c := p.httpClient(tc.dialed, tc.protocols)
			resp, err := c.Transport.RoundTrip(&http.Request{Method: "CONNECT", URL: &url.URL{Scheme: tc.scheme, Host: tc.host}, Host: to + ":443", Header: http.Header{}})
			w.must(err)
			_ = resp.Body.Close()
			if r := w.audit(before + 2)[before+1]; resp.StatusCode != 403 || r.Reason != egress.NestedConnect {
				t.Errorf("%s: CONNECT to %s: %s %+v", tc.name, to, resp.Status, r)
			}
			c.CloseIdleConnections()
		}
		if tc.name == "HTTP/2 in clear text" || tc.name == "HTTP/2" { // which has no such handshake
			continue
		}
		before := len(w.audit(0))
		req, err := http.NewRequest("GET", tc.scheme+"://"+tc.host+"/", nil)
		w.must(err)
		req.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}}
		resp, err := p.httpClient(tc.dialed, tc.protocols).Do(req)
		w.must(err)
		_ = resp.Body.Close()
		if r := w.audit(before + 2)[before+1]; resp.StatusCode != 403 || r.Reason != egress.UpgradeRefused {
			t.Errorf("%s: WebSocket: %s %+v", tc.name, resp.Status, r)
		}
	}
	if n := clear.seen.Load() + secure.seen.Load(); n > 0 || len(w.routes.dialed()) > 0 {
		t.Errorf("%d requests arrived", n)
	}
}
