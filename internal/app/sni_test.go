package app_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// tlsBackend echoes lines with its name inside TLS.
func tlsBackend(t testing.TB, name string) string {
	t.Helper()
	certFile, keyFile := certificate(t, t.TempDir())
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	return tcpBackend(t, func(c *net.TCPConn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair}})
		for r := bufio.NewReader(s); ; {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(s, "%s %s %s", name, s.ConnectionState().ServerName, line)
		}
	})
}

// byName has a router for each name, "*" among them, on the entrypoint "db".
func byName(keys string, services map[string]string, tlsOf map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "entrypoints \"db\" {\n  address = \"127.0.0.1:0\"\n  protocol = \"tcp\"\n  %s\n}\n", keys)
	for name, backend := range services {
		id := strings.NewReplacer("*", "any", ".", "-").Replace(name)
		mode := ""
		if m := tlsOf[name]; m != "" {
			mode = fmt.Sprintf("tls = %q", m)
		}
		fmt.Fprintf(&b, "routers %q {\n  rule = \"HostSNI(`%s`)\"\n  service = %q\n  %s\n}\n", id, name, id, mode)
		fmt.Fprintf(&b, "services %q { load_balancer { servers { url = %q } } }\n", id, "tcp://"+backend)
	}
	return b.String()
}

// once says one line on a connection of its own.
func once(t testing.TB, c net.Conn, line string) string {
	t.Helper()
	defer c.Close()
	return say(t, c, line)
}

func startTLS(t testing.TB, c net.Conn, name string) *tls.Conn {
	t.Helper()
	s := tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err := s.Handshake(); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return s
}

// Connections go by the name that their clients ask for, and TLS is between client and backend.
func TestSNIPassthrough(t *testing.T) {
	a, b, plain := tlsBackend(t, "a"), tlsBackend(t, "b"), tcpBackend(t, echoes("plain"))
	g := gatewaytest.Start(t, byName("", map[string]string{"a.example": a, "*.wild.example": b, "*": plain}, nil))
	for name, want := range map[string]string{
		"a.example": "a a.example x", "A.Example": "a A.Example x", "x.wild.example": "b x.wild.example x", "y.x.wild.example": "b y.x.wild.example x",
	} {
		if got := once(t, startTLS(t, dialTCP(t, g.Addr("db")), name), "x"); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := once(t, dialTCP(t, g.Addr("db")), "no TLS"); got != "plain no TLS" {
		t.Errorf("%q", got)
	}
	g.Stop()
	seen := map[string]string{}
	for range 5 {
		l := g.Lines.Next(t)
		seen[l.Text("host")] = l.Text("router")
		if l.Text("tls_version") != "" {
			t.Error(l)
		}
	}
	if seen["a.example"] != "a-example" || seen["y.x.wild.example"] != "any-wild-example" || seen[""] != "any" {
		t.Error(seen)
	}
}

// A ClientHello that comes in pieces is waited for (KF-L4-01), and no byte of it is lost.
func TestSNIInPieces(t *testing.T) {
	a, other := tlsBackend(t, "a"), tcpBackend(t, echoes("other"))
	g := gatewaytest.Start(t, byName("", map[string]string{"a.example": a, "*": other}, nil))
	for _, cuts := range [][]int{{1, 2, 3, 4, 5, 6}, {5}, {1400}, {100, 101}} {
		c := dialTCP(t, g.Addr("db"))
		s := startTLS(t, &slowStart{Conn: c, cuts: cuts}, "a.example")
		if got := once(t, s, "x"); got != "a a.example x" {
			t.Errorf("cut at %v: %q", cuts, got)
		}
	}
}

// slowStart writes its first bytes in pieces, each after the other end has had time to read the one before.
type slowStart struct {
	net.Conn
	cuts []int
	done int
}

func (s *slowStart) Write(b []byte) (int, error) {
	n := 0
	for n < len(b) {
		end := len(b)
		if len(s.cuts) > 0 {
			end = min(end, n+max(s.cuts[0]-s.done, 0))
			if end < len(b) || s.done+end-n == s.cuts[0] {
				s.cuts = s.cuts[1:]
			}
		}
		k, err := s.Conn.Write(b[n:end])
		n, s.done = n+k, s.done+k
		if err != nil {
			return n, err
		}
		if len(s.cuts) > 0 || end < len(b) {
			time.Sleep(20 * time.Millisecond) // so that the piece travels by itself: this is what is tested
		}
	}
	return n, nil
}

// TLS ends at the gateway, with the entrypoint's certificate; other names pass through beside it.
func TestSNITerminate(t *testing.T) {
	certFile, keyFile := certificate(t, t.TempDir())
	a, plain := tlsBackend(t, "a"), tcpBackend(t, echoes("plain"))
	keys := fmt.Sprintf("tls { cert_file = %q, key_file = %q }", certFile, keyFile)
	g := gatewaytest.Start(t, byName(keys, map[string]string{"a.example": a, "*": plain}, map[string]string{"a.example": "passthrough"}))
	if got := once(t, startTLS(t, dialTCP(t, g.Addr("db")), "a.example"), "x"); got != "a a.example x" {
		t.Errorf("%q", got)
	}
	raw := dialTCP(t, g.Addr("db"))
	s := startTLS(t, raw, "gateway.test")
	if err := s.ConnectionState().PeerCertificates[0].VerifyHostname("gateway.test"); err != nil {
		t.Error(err)
	}
	if p := s.ConnectionState().NegotiatedProtocol; p != "" {
		t.Errorf("agreed on %q", p)
	}
	if got := say(t, s, "x"); got != "plain x" {
		t.Errorf("%q", got)
	}
	_ = s.CloseWrite()
	if _, err := s.Read(make([]byte, 1)); err != io.EOF { // and not an unexpected end
		t.Errorf("the end is %v", err)
	}
	_ = raw.Close()
	plainText := dialTCP(t, g.Addr("db"))
	_, _ = io.WriteString(plainText, "no TLS at all\n")
	_ = over(t, plainText)
	g.Stop()
	var versions, codes []string
	for range 3 {
		l := g.Lines.Next(t)
		versions = append(versions, l.Text("tls_version"))
		codes = append(codes, l.Text("outcome")+" "+l.Text("error_code"))
	}
	if strings.Join(versions, ",") == ",," || !strings.Contains(strings.Join(codes, ","), "rejected tls_handshake_failed") {
		t.Errorf("versions %q, codes %q", versions, codes)
	}
}

// With one certificate for all nobody is waited for: a handshake is all that the client has to do.
func TestTCPTerminateAll(t *testing.T) {
	certFile, keyFile := certificate(t, t.TempDir())
	banner := tcpBackend(t, func(c *net.TCPConn) { _, _ = io.WriteString(c, "220 ready\r\n"); _, _ = io.Copy(io.Discard, c) })
	g := gatewaytest.Start(t, streams(fmt.Sprintf("tls { cert_file = %q, key_file = %q, min_version = \"1.3\" }", certFile, keyFile), `tls = "terminate"`, "", "tcp://"+banner))
	s := startTLS(t, dialTCP(t, g.Addr("db")), "anything")
	b := make([]byte, 11)
	if _, err := io.ReadFull(s, b); string(b) != "220 ready\r\n" {
		t.Errorf("%q, %v", b, err)
	}
	_ = s.Close()
	if l := g.Lines.Next(t); l.Text("outcome") != "ok" || l.Text("tls_version") != "1.3" || l.Number("response_bytes") != 11 {
		t.Error(l)
	}
}

// Who a client is by its certificate stands in the line of its connection; without one that is required it is served nothing.
func TestTCPClientIdentity(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := certificate(t, dir)
	caFile := filepath.Join(dir, "clients.pem")
	mine := clientCertificate(t, caFile, "agent.test")
	keys := fmt.Sprintf("tls { cert_file = %q, key_file = %q, client_ca_file = %q, client_auth = \"require\" }", certFile, keyFile, caFile)
	g := gatewaytest.Start(t, streams(keys, "", "", "tcp://"+tcpBackend(t, echoes("a"))))
	c := tls.Client(dialTCP(t, g.Addr("db")), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"db"}, Certificates: []tls.Certificate{mine}})
	if got := once(t, c, "x"); got != "a x" {
		t.Errorf("%q", got)
	}
	if l := g.Lines.Next(t); l.Text("client_identity") != "agent.test" || l.Text("outcome") != "ok" {
		t.Error(l)
	}
	_ = over(t, startTLS(t, dialTCP(t, g.Addr("db")), "gateway.test"))
	if l := g.Lines.Next(t); l.Text("client_identity") != "" || l.Text("error_code") != "tls_handshake_failed" {
		t.Error(l)
	}
}

// Where names share a port with a server that speaks first, its client waits for tcp_hello_timeout (KF-L4-02).
func TestSNIServerFirst(t *testing.T) {
	a := tlsBackend(t, "a")
	banner := tcpBackend(t, func(c *net.TCPConn) { _, _ = io.WriteString(c, "220 ready\r\n") })
	g := gatewaytest.Start(t, byName(`tcp_hello_timeout = "200ms"`, map[string]string{"a.example": a, "*": banner}, nil))
	began := time.Now()
	b, err := io.ReadAll(dialTCP(t, g.Addr("db")))
	if string(b) != "220 ready\r\n" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if d := time.Since(began); d < 200*time.Millisecond || d >= 3*time.Second {
		t.Errorf("after %v, and not after the default", d)
	}
}

// Who asks for a name that nobody has is closed, and so is, at its deadline, who is waited for during a drain.
func TestSNINoRoute(t *testing.T) {
	g := gatewaytest.Start(t, "shutdown_timeout_secs = 0\n"+byName(`tcp_hello_timeout = "10s"`, map[string]string{"a.example": tlsBackend(t, "a")}, nil))
	s := tls.Client(dialTCP(t, g.Addr("db")), &tls.Config{ServerName: "b.example", InsecureSkipVerify: true})
	if err := s.Handshake(); err == nil {
		t.Error("a handshake without a backend")
	}
	if l := g.Lines.Next(t); l.Text("host") != "b.example" || l.Text("error_code") != "no_route" || l.Text("outcome") != "rejected" {
		t.Error(l)
	}
	gatewaytest.Until(t, "it has left", func() bool { return g.Residue().Connections == 0 })
	silent := dialTCP(t, g.Addr("db"))
	gatewaytest.Until(t, "the connection is served", func() bool { return g.Residue().Connections == 1 })
	began := time.Now()
	g.Stop()
	_ = over(t, silent)
	if d := time.Since(began); d > 8*time.Second {
		t.Errorf("the drain took %v", d)
	}
	if l := g.Lines.Next(t); l.Text("outcome") != "drained" {
		t.Error(l)
	}
}
