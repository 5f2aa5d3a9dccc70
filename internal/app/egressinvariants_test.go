package app_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/egress"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
	"github.com/sluice-proxy/sluice/internal/http1test"
)

// The invariants of the threat model on the way out of actors (docs/invariants.md), by their numbers.

// I14: an actor that runs goes nowhere until there is a policy, and where the policy was there before it, it goes at once.
func TestI14_PolicyBeforeTheFirstByte(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	w.origin("web.example.org", "93.184.216.34:80", false)
	early, late := w.create("a1"), w.create("a2")
	early.may(`{"http":{"hostnames":["web.example.org"]}}`)
	early.resume()
	late.resume()
	if status, body, _ := fetched(t, early.httpClient("93.184.216.34:80", one), "http://web.example.org/"); status != 200 {
		t.Errorf("the first request of an actor with a policy: %d %s", status, body)
	}
	c, status := late.tunnel("93.184.216.34:80")
	_ = c.Close()
	if status != 403 {
		t.Errorf("the first tunnel of an actor without one: %d", status)
	}
}

// I19, Appendix A: a request that carries what a rule would replace is never sent on with what the actor has put there, whatever the
// case and the number of its lines. Only the rule that decides has a say.
func TestI19_HeaderEffectsOfRequests(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	o := w.origin("web.example.org", "93.184.216.34:80", false)
	p := w.run("a1")
	effects := `,"effects":{"replace_headers":[{"header":"Authorization","prefix":"Bearer ","credential_uri":"ate-secret://class/provider/tail"}]}`
	p.may(`{"http":{"hostnames":["web.example.org"]` + effects + `}},{"http":{"hostnames":["*"]}},{"http":{"hostnames":["api.example.com"],"ports":{"all":{}}` + effects + `}}`)
	for _, tc := range []struct {
		name, host, lines string
		status            int
	}{
		{"absent", "web.example.org", "X-Authorization: x\r\n", 200},
		{"once", "web.example.org", "Authorization: placeholder\r\n", 403},
		{"twice", "web.example.org", "Authorization: placeholder\r\nAuthorization: placeholder\r\n", 403},
		{"lower case", "web.example.org", "authorization: placeholder\r\n", 403},
		{"another case", "web.example.org", "aUTHORIZATION: placeholder\r\n", 403},
		{"empty", "web.example.org", "Authorization:\r\n", 403},
		{"another rule decides", "other.example.com", "Authorization: the-actor's-own\r\n", 200},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := o.seen.Load()
			c, status := p.tunnel("93.184.216.34:80")
			if status != 200 {
				t.Fatalf("CONNECT: %d", status)
			}
			defer func() { _ = c.Close() }()
			fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\n%s\r\n", tc.host, tc.lines)
			head := make([]byte, 12)
			_, _ = io.ReadFull(c, head)
			if want := fmt.Sprintf("HTTP/1.1 %d", tc.status); string(head) != want {
				t.Errorf("answered %q", head)
			}
			if sent := o.seen.Load() - before; (sent == 1) != (tc.status == 200) {
				t.Errorf("the origin has seen %d requests", sent)
			}
		})
	}
}

// I20: an origin that does not prove its name, now, to an authority that is believed, is not talked to.
func TestI20_KF_EGR_13_OriginsProve(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	stranger, err := cert.OpenAuthority(cert.AuthorityOptions{Name: "stranger"})
	w.must(err)
	p := w.run("a1")
	p.may(everythingAllowed)
	for name, tc := range map[string]struct {
		by   *cert.Authority
		leaf cert.Leaf
		want int
	}{
		"its own":          {w.origins, cert.ServiceLeaf("api.example.com"), 200},
		"another name":     {w.origins, cert.ServiceLeaf("other.example.com"), 502},
		"a name below":     {w.origins, cert.ServiceLeaf("x.api.example.com"), 502},
		"expired":          {w.origins, cert.Leaf{Names: []string{"api.example.com"}, Server: true, Life: time.Millisecond, Backdate: time.Minute}, 502},
		"for clients":      {w.origins, cert.Leaf{Names: []string{"api.example.com"}, Client: true, Life: time.Hour}, 502},
		"another signer's": {stranger, cert.ServiceLeaf("api.example.com"), 502},
	} {
		t.Run(name, func(t *testing.T) {
			own, err := tc.by.Certificate(tc.leaf)
			w.must(err)
			l, err := net.Listen("tcp", "127.0.0.1:0")
			w.must(err)
			var seen atomic.Int64
			s := &http.Server{
				TLSConfig: &tls.Config{Certificates: []tls.Certificate{*own}}, ReadHeaderTimeout: gatewaytest.Patience,
				Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen.Add(1) }), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
			}
			ended := make(chan struct{})
			go func() { defer close(ended); _ = s.ServeTLS(l, "", "") }()
			defer func() { _ = s.Close(); <-ended }()
			w.routes.route("93.184.216.34:443", l.Addr().String())
			c := p.httpClient("93.184.216.34:443", one)
			status, body, _ := fetched(t, c, "https://api.example.com/")
			c.CloseIdleConnections() // with the tunnel, and with it the connection to the origin
			if status != tc.want || (seen.Load() > 0) != (tc.want == 200) {
				t.Errorf("%d %s, %d requests", status, body, seen.Load())
			}
		})
	}
}

// I21, I23: every decision has its line, and no answer to an actor tells where it was made, or what it was made by.
func TestI21_I23_AnswersTellNothingAndLinesTellAll(t *testing.T) {
	w := newWorld(t, worldHosts+"93.184.216.99 gone.example.com\n", "")
	w.origin("web.example.org", "93.184.216.34:80", false)
	w.origin("another", "93.184.216.34:443", true) // which proves no name that it is asked for
	p, none := w.run("a1"), w.run("a2")
	p.may(everythingAllowed)
	tells := regexp.MustCompile(`(?i)\d+\.\d+\.\d+\.\d+|\[?::|rpc|x509|certificate|dial|tcp|lookup|refused by|policy|rule|w1|/tmp|actor|demo`)
	tunnels := 0
	for url, want := range map[string]int{
		"http://web.example.org/":           200,
		"http://metadata.example.com/":      403,
		"http://169.254.169.254/":           403,
		"http://gone.example.com/":          502,
		"http://no-such-name.example.com/":  502,
		"https://api.example.com/":          502,
		"http://inner.example.com/a?b=c":    403,
		"http://loop.example.com/x/../../y": 403,
	} {
		dialed := "93.184.216.34:80"
		if strings.HasPrefix(url, "https") {
			dialed = "93.184.216.34:443"
		}
		status, body, head := fetched(t, p.httpClient(dialed, one), url)
		tunnels++
		if status != want && (want != 502 || status/100 != 5) {
			t.Errorf("%s: %d %s", url, status, body)
		}
		for name, values := range head {
			body += "\n" + name + ": " + strings.Join(values, ",")
		}
		if leak := tells.FindString(body); leak != "" && want != 200 {
			t.Errorf("%s: the actor reads %q in %s", url, leak, body)
		}
	}
	_, status := none.tunnel("93.184.216.34:80")
	if status != 403 {
		t.Errorf("without a policy: %d", status)
	}
	lines := w.audit(2*tunnels + 1)
	for _, r := range lines {
		if r.ID == "" || r.Time.IsZero() || r.Actor == "" || r.UID == "" || r.Reason == "" || r.Verdict != "allow" && r.Verdict != "deny" || (r.Verdict == "allow") != (r.Reason == egress.Allowed) {
			t.Errorf("audit: %+v", r)
		}
	}
	_, exposition := ask(t, w.gateway.Addr("management"), "/api/gateway/metrics")
	decided := 0.0
	for line := range strings.Lines(exposition) {
		if strings.HasPrefix(line, "gateway_egress_decisions_total{") {
			v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(strings.TrimSpace(line), ' '):]), 64)
			w.must(err)
			decided += v
		}
	}
	if int(decided) != len(lines) || len(lines) != 2*tunnels+1 {
		t.Errorf("%v decisions and %d lines of %d tunnels", decided, len(lines), tunnels+1)
	}
}

// I25: what two parsers could read differently is refused on every leg, and reaches nobody.
func TestI25_SmugglingOnEveryLeg(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	clear, secure := w.origin("web.example.org", "93.184.216.34:80", false), w.origin("api.example.com", "93.184.216.34:443", true)
	p := w.run("a1")
	p.may(everythingAllowed)
	text, err := os.ReadFile(w.projectedCA())
	w.must(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	legs := map[string]func() net.Conn{
		"clear text": func() net.Conn { c, _ := p.tunnel("93.184.216.34:80"); return c },
		"intercepted": func() net.Conn {
			c, _ := p.tunnel("93.184.216.34:443")
			return tls.Client(c, &tls.Config{ServerName: "api.example.com", RootCAs: roots})
		},
	}
	for leg, open := range legs {
		tried := 0
		for _, tc := range http1test.Cases {
			if tc.Code != 400 || tc.Saw != "" {
				continue
			}
			tried++
			c := open()
			_ = c.SetDeadline(time.Now().Add(gatewaytest.Patience))
			_, _ = io.WriteString(c, tc.In+http1test.Next)
			head := make([]byte, 12)
			k, _ := io.ReadFull(c, head)
			if leg == "clear text" && tc.In[0] == 0x16 { // the beginning of TLS, which does not go on
				if k > 0 {
					t.Errorf("%s: %s: %q", leg, tc.Name, head[:k])
				}
			} else if string(head[:k]) != "HTTP/1.1 400" {
				t.Errorf("%s: %s: %q", leg, tc.Name, head[:k])
			}
			_ = c.Close()
		}
		if tried < 50 {
			t.Errorf("%s: %d cases only", leg, tried)
		}
	}
	if n := clear.seen.Load() + secure.seen.Load(); n > 0 || len(w.routes.dialed()) > 0 {
		t.Errorf("origins have seen %d requests", n)
	}
}

// I30: the gateway's own management is not to be reached by an actor, whatever its policy and by whatever name.
func TestI30_ManagementIsOutOfReach(t *testing.T) {
	w := newWorld(t, worldHosts+"127.0.0.1 management.example.com\n::1 management.example.com\n", "")
	p := w.run("a1")
	p.may(`{"http":{"hostnames":["*"],"ports":{"all":{}}}},{"tls_passthrough":{"hostnames":["*"],"ports":{"all":{}}}}`)
	for _, listener := range []string{"management", "egress"} {
		port := portOf(t, w.gateway.Addr(listener))
		for _, host := range []string{"management.example.com", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0"} {
			url := "http://" + host + ":" + port + "/api/gateway/metrics"
			if status, body, _ := fetched(t, p.httpClient("93.184.216.34:"+port, one), url); status != 403 {
				t.Errorf("%s: %d %s", url, status, body)
			}
		}
	}
	if d := w.routes.dialed(); len(d) > 0 {
		t.Errorf("dialed %v", d)
	}
}
