package app_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// tunnels adds what CONNECT needs to the configuration of a router.
func (n *actorNet) tunnels(more string) string {
	service := n.file("router", serviceDNS, cert.CredentialFile)
	return n.config("entrypoint = \"inner\"\n"+more) + fmt.Sprintf(`
		entrypoints "tunnels" {
			address = "127.0.0.1:0"
			protocol = "connect"
			tls { cert_file = %[1]q, key_file = %[1]q, client_auth = "request", client_ca_file = %[2]q }
		}
		entrypoints "inner" { address = "tunnel:" }
		routers "tunnels" { rule = "PathPrefix(%[3]s/%[3]s)", entrypoints = ["tunnels"], service = "actors" }
		routers "inside" { rule = "PathPrefix(%[3]s/%[3]s)", entrypoints = ["inner"], service = "actors" }`,
		service, n.file("ateapi", podIdentity, cert.TrustFile), "`")
}

// inside is a connection on which a CONNECT was answered.
type inside struct {
	*tls.Conn
	r *bufio.Reader
}

// connect asks for a tunnel.
func (n *actorNet) connect(addr, component, target string, fields ...string) (*inside, reply) {
	n.t.Helper()
	c, err := tls.Dial("tcp", addr, n.httpClient(component).Transport.(*http.Transport).TLSClientConfig)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Close() })
	i := &inside{c, bufio.NewReader(c)}
	return i, i.ask(n.t, "CONNECT", target, fields...)
}

// ask sends a request and reads the answer.
func (i *inside) ask(t *testing.T, method, target string, fields ...string) reply {
	t.Helper()
	_, _ = fmt.Fprintf(i, "%s %s HTTP/1.1\r\nHost: app.test:1234\r\n", method, target)
	for f := 0; f+1 < len(fields); f += 2 {
		_, _ = fmt.Fprintf(i, "%s: %s\r\n", fields[f], fields[f+1])
	}
	_, _ = io.WriteString(i, "\r\n")
	resp, err := http.ReadResponse(i.r, &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	var body []byte
	if method != "CONNECT" || resp.StatusCode != 200 {
		body, err = io.ReadAll(resp.Body)
	}
	if err != nil {
		t.Error(err)
	}
	return reply{resp.StatusCode, string(body), resp.Header}
}

// A tunnel leads to one port of one actor, wherever that is, and nothing inside leads elsewhere.
func TestKF_ACT_10_Tunnel(t *testing.T) {
	n := newActorNet(t, iAm)
	n.create("a", "b")
	w1, w2 := n.attach("w1", 1, 10), n.attach("w2", 2, 10)
	n.place("a", "w1")
	g := gatewaytest.Start(t, n.tunnels(allowed("")))
	defer g.Stop()
	c, r := n.connect(g.Addr("tunnels"), "admin", "app.test:9000", "ate-target-actor", "demo/a")
	if r.status != 200 || w1.tunnels.Load() != 0 {
		t.Fatalf("%+v, %d tunnels", r, w1.tunnels.Load())
	}
	for range 3 {
		if r := c.ask(t, "GET", "/", "ate-target-actor", "demo/b", "x-ate-target-port", "80"); r.status != 200 || r.body != "a" || r.header.Get("X-Leaked") != "" || r.header.Get("X-Host") != "app.test:1234" {
			t.Errorf("%+v", r)
		}
	}
	if w1.port.Load() != 9000 {
		t.Errorf("port %d was asked for", w1.port.Load())
	}
	n.place("a", "w2")
	n.suspend("a")
	if r := c.ask(t, "GET", "/"); r.status != 200 || r.body != "a" || w2.port.Load() != 9000 {
		t.Errorf("after a move: %+v, port %d", r, w2.port.Load())
	}
	other, _ := n.connect(g.Addr("tunnels"), "admin", "app.test:81", "ate-target-actor", "demo/a")
	other.ask(t, "GET", "/").told(t, "a closed port", 502, "bad gateway", "connect_failed")
}

// A CONNECT that is refused wakes nobody, and neither does one that is granted.
func TestActorTunnelRefused(t *testing.T) {
	t.Parallel()
	n := newActorNet(t, iAm)
	n.create("a", "b")
	n.attach("w1", 1, 10)
	g := gatewaytest.Start(t, n.tunnels(fmt.Sprintf(`
		allow "egress" { callers = [%q], actors = ["demo/b"], ports = [9000], methods = ["GET"], paths = ["/open"] }`, app.EgressID)))
	defer g.Stop()
	for _, tc := range []struct {
		name, component, target, actor string
		status                         int
	}{
		{"no actor", "egress", "h:9000", "", 404},
		{"a malformed one", "egress", "h:9000", "Demo/b", 404},
		{"no port", "egress", "h", "demo/b", 400},
		{"port 0", "egress", "h:0", "demo/b", 400},
		{"no number", "egress", "h:x", "demo/b", 400},
		{"too large a port", "egress", "h:65536", "demo/b", 400},
		{"another port", "egress", "h:80", "demo/b", 403},
		{"another actor", "egress", "h:9000", "demo/a", 403},
		{"another client", "admin", "h:9000", "demo/b", 403},
		{"no certificate", "", "h:9000", "demo/b", 403},
		{"what is allowed", "egress", "h:9000", "demo/b", 200},
	} {
		var fields []string
		if tc.actor != "" {
			fields = []string{"ate-target-actor", tc.actor}
		}
		c, r := n.connect(g.Addr("tunnels"), tc.component, tc.target, fields...)
		if r.status != tc.status || tc.status == 200 != (r.header.Get("Ate-Router-Reason") == "") && tc.status != 400 {
			t.Errorf("%s: %+v", tc.name, r)
		}
		if tc.status == 200 {
			c.ask(t, "GET", "/closed").told(t, "another path", 403, "actor demo/b access denied", "actor_access_denied")
		}
	}
	for _, name := range []string{"a", "b"} {
		if a, err := n.admin.GetActor(t.Context(), demo(name)); err != nil || a.State != actor.Suspended {
			t.Errorf("%s: %v %v", name, a.State, err)
		}
	}
	c, _ := n.connect(g.Addr("tunnels"), "egress", "h:9000", "ate-target-actor", "demo/b")
	if r := c.ask(t, "GET", "/open/x"); r.status != 200 || r.body != "b" {
		t.Errorf("%+v", r)
	}
	// What is inside comes from nowhere else: a request to another entrypoint has no tunnel around it.
	if r := get(t, n.httpClient("egress"), "https://"+g.Addr("web")+"/open", "ate-target-actor", "demo/b"); r.status != 403 || !strings.Contains(r.body, "demo/b") {
		t.Errorf("%+v", r)
	}
}
