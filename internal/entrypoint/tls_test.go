package entrypoint_test

import (
	"bufio"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// testTLS is a configuration with a certificate that signs itself.
var testTLS = sync.OnceValue(func() *tls.Config {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"h2", "http/1.1"},
	}
})

func TestTLS(t *testing.T) {
	eachMode(t, func(t *testing.T, setup entrypoint.Setup) {
		s := newSet(t, setup)
		h1, h2 := newLines(), newLines()
		h1.name, h2.name = "h1 ", "h2 "
		infos := make(chan conn.Info, 1)
		noted := func(serve entrypoint.Serve) entrypoint.Serve {
			return func(c conn.Conn, live *drain.Tracker) {
				infos <- *c.Info()
				serve(c, live)
			}
		}
		apply(t, s, wanted{"web": {Address: "127.0.0.1:0", HTTP: noted(h1.serve), H2: noted(h2.serve), TLS: testTLS}})
		for _, c := range []struct {
			alpn []string
			want string
		}{
			{nil, "h1 web x"},
			{[]string{"http/1.1"}, "h1 web x"},
			{[]string{"h2"}, "h2 web x"},
			{[]string{"http/1.1", "h2"}, "h2 web x"}, // the server's order decides
		} {
			raw, err := dial(s.Addr("web"))
			if err != nil {
				t.Fatal(err)
			}
			tc := tls.Client(raw.Conn, &tls.Config{InsecureSkipVerify: true, NextProtos: c.alpn, ServerName: "localhost"})
			client := &client{tc, bufio.NewReader(tc)}
			client.want(t, "x", c.want)
			info := <-infos
			if info.TLS == nil || info.TLS.ServerName != "localhost" || !info.TLS.HandshakeComplete || info.Entrypoint != "web" {
				t.Errorf("info = %+v", info)
			}
			if info.Remote.String() != raw.LocalAddr().String() {
				t.Errorf("remote %s, the client has %s", info.Remote, raw.LocalAddr())
			}
			_ = tc.Close()
		}
	})
}

// Without a server for h2 everything goes to the HTTP server.
func TestTLSWithoutH2(t *testing.T) {
	s := newSet(t, entrypoint.Setup{})
	apply(t, s, wanted{"web": {Address: "127.0.0.1:0", HTTP: newLines().serve, TLS: testTLS}})
	c := mustDial(t, s.Addr("web"))
	tc := tls.Client(c.Conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	(&client{tc, bufio.NewReader(tc)}).want(t, "x", "web x")
}

// TLS is added and removed in place: new connections speak the other way, old ones go on.
func TestTLSOnOff(t *testing.T) {
	eachMode(t, func(t *testing.T, setup entrypoint.Setup) {
		s := newSet(t, setup)
		srv := newLines()
		address := gatewaytest.FreeAddress(t)
		clear := wanted{"web": {Address: address, HTTP: srv.serve}}
		secure := wanted{"web": {Address: address, HTTP: srv.serve, TLS: testTLS}}
		apply(t, s, clear)
		old := mustDial(t, s.Addr("web"))
		old.want(t, "1", "web 1")
		for range 3 {
			apply(t, s, secure)
			c, err := dialTLS(s.Addr("web"))
			if err != nil {
				t.Fatal(err)
			}
			c.want(t, "x", "web x")
			old.want(t, "2", "web 2")
			apply(t, s, clear)
			c.want(t, "y", "web y")
			mustDial(t, s.Addr("web")).want(t, "z", "web z")
			_ = c.Close()
		}
	})
}

func TestHandshakeFailures(t *testing.T) {
	for name, c := range map[string]struct {
		send string
		// answered: the client is told in clear text, as far as that can be.
		answered bool
		timeout  time.Duration // 0: longer than the client waits
	}{
		"silent client":  {"", false, 100 * time.Millisecond},
		"half a record":  {"\x16\x03\x01", false, 100 * time.Millisecond},
		"not TLS":        {"\x00\x01\x02\x03\x04\x05\x06\x07", false, 0},
		"ssh":            {"SSH-2.0-OpenSSH_9.2\r\n", true, 0},
		"HTTP/1.1":       {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", true, 0},
		"HTTP/2 preface": {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", true, 0},
		"with a body":    {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n" + strings.Repeat("x", 20000), true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, setup entrypoint.Setup) {
				s := newSet(t, setup)
				apply(t, s, wanted{"web": {
					Address: "127.0.0.1:0", HTTP: newLines().serve, TLS: testTLS, HandshakeTimeout: cmp.Or(c.timeout, 2*patience),
				}})
				conn := mustDial(t, s.Addr("web"))
				if _, err := io.WriteString(conn, c.send); err != nil {
					t.Fatal(err)
				}
				if c.answered {
					res, err := http.ReadResponse(conn.r, nil)
					if err != nil {
						t.Fatal(err)
					}
					body, err := io.ReadAll(res.Body)
					if err != nil || res.StatusCode != 400 || !strings.Contains(string(body), "TLS") {
						t.Errorf("status %d, body %q, %v", res.StatusCode, body, err)
					}
				} else if b, err := io.ReadAll(conn.r); err == nil && len(b) > 0 && b[0] != 21 {
					t.Errorf("got %q, which is no alert", b)
				} else if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
					t.Error("the connection was not closed")
				}
				_ = conn.Close()
				eventually(t, "the connection is counted as ended", func() bool { return stats(t, s, "web").Open == 0 })
				if st := stats(t, s, "web"); st.HandshakeFailures != 1 || st.Accepted != 1 {
					t.Errorf("stats = %+v", st)
				}
			})
		})
	}
}

func TestNoCertificate(t *testing.T) {
	s := newSet(t, entrypoint.Setup{})
	apply(t, s, wanted{"web": {Address: "127.0.0.1:0", HTTP: newLines().serve, TLS: func() *tls.Config { return nil }}})
	mustDial(t, s.Addr("web")).closed(t)
	eventually(t, "it is counted", func() bool { return stats(t, s, "web").HandshakeFailures == 1 })
}

// A client that is silent before its handshake is idle: a prompt drain ends it, a gentle one lets it come through.
func TestDrainBeforeHandshake(t *testing.T) {
	for _, mode := range []drain.Mode{drain.Gentle, drain.Prompt} {
		t.Run(mode.String(), func(t *testing.T) {
			eachMode(t, func(t *testing.T, setup entrypoint.Setup) {
				s := newSet(t, setup)
				apply(t, s, wanted{"web": {Address: "127.0.0.1:0", HTTP: newLines().serve, TLS: testTLS}})
				c := mustDial(t, s.Addr("web"))
				eventually(t, "it is accepted", func() bool { return stats(t, s, "web").Open == 1 })
				s.Drain(mode)
				if mode == drain.Prompt {
					c.closed(t)
				} else {
					tc := tls.Client(c.Conn, &tls.Config{InsecureSkipVerify: true})
					client := &client{tc, bufio.NewReader(tc)}
					client.want(t, "x", "web x")
					client.closed(t)
				}
				if err := s.Wait(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A server finds on a TLS connection what it finds on one in clear text.
func TestSecuredConnection(t *testing.T) {
	eachMode(t, func(t *testing.T, setup entrypoint.Setup) {
		s := newSet(t, setup)
		kernel := setup.Listen == nil
		conns, done := make(chan conn.Conn), make(chan struct{})
		apply(t, s, wanted{"web": {Address: "127.0.0.1:0", TLS: testTLS, HTTP: func(c conn.Conn, _ *drain.Tracker) {
			conns <- c
			<-done
		}}})
		defer close(done)
		client, err := dialTLS(s.Addr("web"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close() }()
		c := <-conns
		if fd := c.(interface{ FD() int }).FD(); kernel && fd < 0 {
			t.Errorf("descriptor %d", fd)
		}
		// An interrupt ends a read that waits; reading goes on afterwards.
		var waiting atomic.Bool
		failed := make(chan error)
		go func() {
			waiting.Store(true)
			_, err := c.Read(make([]byte, 1))
			failed <- err
		}()
		eventually(t, "it reads", waiting.Load)
		c.(conn.Interrupter).Interrupt()
		var ne net.Error
		if err := <-failed; !errors.As(err, &ne) || !ne.Timeout() {
			t.Errorf("the interrupted read gave %v", err)
		}
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if err := client.send("hello"); err != nil {
			t.Fatal(err)
		}
		got, err := bufio.NewReader(c).ReadString('\n')
		if err != nil || got != "hello\n" {
			t.Fatalf("read %q, %v", got, err)
		}
		// Half-close.
		if _, err := io.WriteString(c, "bye\n"); err != nil {
			t.Fatal(err)
		}
		if err := c.(conn.CloseWriter).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if rest, err := io.ReadAll(client.r); err != nil || string(rest) != "bye\n" {
			t.Errorf("the client read %q, %v", rest, err)
		}
		if err := client.send("still"); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 6)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "still\n" {
			t.Errorf("read %q, %v", b, err)
		}
		// Departure.
		prober := c.(conn.Prober)
		if prober.PeerGone() {
			t.Error("the client is said to be gone")
		}
		_ = client.Conn.(*tls.Conn).NetConn().Close()
		if kernel {
			eventually(t, "the client is gone", prober.PeerGone)
		}
		if err := c.(interface{ Abort() error }).Abort(); err != nil {
			t.Error(err)
		}
	})
}

// pipes is a listener of connections in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "memory"} }

// A client that reads nothing does not hold up the close, on a connection without any buffer.
func TestCloseIsBounded(t *testing.T) {
	p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	s := newSet(t, entrypoint.Setup{Listen: func(context.Context, string, string) (net.Listener, error) { return p, nil }})
	took := make(chan time.Duration, 1)
	apply(t, s, wanted{"web": {Address: "127.0.0.1:0", TLS: testTLS, HTTP: func(c conn.Conn, _ *drain.Tracker) {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Error(err)
		}
		began := time.Now()
		_ = c.Close()
		took <- time.Since(began)
	}}})
	client, server := net.Pipe()
	defer func() { _ = client.Close() }()
	p.conns <- server
	tc := tls.Client(client, &tls.Config{InsecureSkipVerify: true})
	if _, err := io.ReadFull(tc, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if d := <-took; d > 3*time.Second {
		t.Errorf("closing took %v", d)
	}
}

// A certification authority that has looked at a certificate by its own protocol gets nothing more (RFC 8737).
func TestChallengeProtocol(t *testing.T) {
	eachMode(t, func(t *testing.T, setup entrypoint.Setup) {
		s := newSet(t, setup)
		challenge := func() *tls.Config {
			c := testTLS().Clone()
			c.NextProtos = []string{"acme-tls/1"}
			return c
		}
		streams := &entrypoint.Streams{Clock: conn.NewClock(), Handler: looked{t}}
		apply(t, s, wanted{
			"web": {Address: "127.0.0.1:0", TLS: challenge, HTTP: func(conn.Conn, *drain.Tracker) { t.Error("served") }},
			"tcp": {Address: "127.0.0.1:0", TLS: challenge, Streams: streams},
		})
		for _, name := range []string{"web", "tcp"} {
			raw, err := dial(s.Addr(name))
			if err != nil {
				t.Fatal(err)
			}
			c := tls.Client(raw.Conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"acme-tls/1"}})
			if _, err := io.ReadFull(c, make([]byte, 1)); !errors.Is(err, io.EOF) || c.ConnectionState().NegotiatedProtocol != "acme-tls/1" {
				t.Errorf("%s: %q, %v", name, c.ConnectionState().NegotiatedProtocol, err)
			}
			_ = c.Close()
		}
	})
}

// looked ends TLS, and expects nothing inside.
type looked struct{ t *testing.T }

func (l looked) ServeConn(c conn.Conn, x *exchange.Exchange) error {
	if inner, err := x.Terminate(c); inner != nil || err != nil {
		l.t.Errorf("inside is %v, %v", inner, err)
	}
	return nil
}
