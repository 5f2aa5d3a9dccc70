package app_test

//lint:file-ignore SA1019 the foreign client is chosen for its own transport: it takes any connection and speaks without TLS

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// tunnelConfig is a gateway with an entrypoint for tunnels, "proxy", and one inside of them, "inner". The port of the
// destinations is given, and the backend of what is inside.
func tunnelConfig(port, inside, keys string) string {
	return `entrypoints "proxy" {
  address  = "127.0.0.1:0"
  protocol = "connect"
  ` + keys + `
}
entrypoints "inner" { address = "tunnel:" }
entrypoints "web"   { address = "127.0.0.1:0" }
routers "out" {
  rule        = "Host(` + "`127.0.0.1`" + `) || Host(` + "`localhost`" + `)"
  entrypoints = ["proxy"]
  service     = "local"
}
routers "strict" {
  rule        = "Host(` + "`127.0.0.2`" + `)"
  entrypoints = ["proxy"]
  service     = "strict"
}
routers "fixed" {
  rule        = "Host(` + "`fixed.test`" + `)"
  entrypoints = ["proxy"]
  service     = "fixed"
}
routers "in" {
  rule        = "Host(` + "`inside.test`" + `)"
  entrypoints = ["proxy"]
  service     = "inside"
}
routers "inner" {
  rule        = "Host(` + "`app.test`" + `) || Host(` + "`gateway.test`" + `)"
  entrypoints = ["inner"]
  service     = "app"
}
routers "everywhere" {
  rule    = "PathPrefix(` + "`/`" + `)"
  service = "app"
}
services "local"  { connect { ports = [` + port + `], allow_cidrs = ["127.0.0.0/8", "::1"] } }
services "strict" { connect { ports = [` + port + `] } }
services "inside" { connect { entrypoint = "inner" } }
services "fixed"  { load_balancer { servers { url = "tcp://127.0.0.1:` + port + `" } } }
services "app"    { load_balancer { servers { url = "` + inside + `" } } }
management { enabled = true, address = "127.0.0.1:0", auth_token_env = "" }
`
}

// opener asks an entrypoint for a tunnel, over one version of HTTP.
type opener func(t testing.TB, proxy, target string) (c halfCloser, status int)

type halfCloser interface {
	net.Conn
	CloseWrite() error
}

var openers = map[string]opener{"HTTP/1.1": openOne, "HTTP/2": openTwo}

// openOne does so over HTTP/1.1. Bytes behind the head stay readable.
func openOne(t testing.TB, proxy, target string) (halfCloser, int) {
	t.Helper()
	c, err := net.Dial("tcp", proxy)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(gatewaytest.Patience))
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	br := bufio.NewReader(c)
	res, err := http.ReadResponse(br, &http.Request{Method: "CONNECT"})
	if err != nil {
		t.Fatal(err)
	}
	return &read{c.(*net.TCPConn), br}, res.StatusCode
}

// read reads through a buffer.
type read struct {
	*net.TCPConn
	br *bufio.Reader
}

func (r *read) Read(b []byte) (int, error) { return r.br.Read(b) }

// openTwo does so over HTTP/2, by a foreign client.
func openTwo(t testing.TB, proxy, target string) (halfCloser, int) {
	t.Helper()
	tr := &http2.Transport{AllowHTTP: true, DialTLSContext: func(ctx context.Context, _, _ string, _ *tls.Config) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", proxy)
	}}
	t.Cleanup(tr.CloseIdleConnections)
	return openStream(t, tr, target)
}

// openStream opens a tunnel on the connection of a client.
func openStream(t testing.TB, tr *http2.Transport, target string) (halfCloser, int) {
	t.Helper()
	r, w := io.Pipe()
	ctx, cancel := context.WithTimeout(context.Background(), gatewaytest.Patience)
	t.Cleanup(cancel)
	req := (&http.Request{Method: "CONNECT", URL: &url.URL{Scheme: "http", Host: target}, Host: target, Body: r, Header: http.Header{}}).WithContext(ctx)
	res, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	c := &streamed{Reader: res.Body, w: w, end: func() { cancel(); _ = res.Body.Close(); _ = w.Close() }}
	t.Cleanup(c.end)
	return c, res.StatusCode
}

// streamed is a tunnel as the foreign client knows it.
type streamed struct {
	net.Conn
	io.Reader
	w   *io.PipeWriter
	end func()
}

func (s *streamed) Read(b []byte) (int, error)  { return s.Reader.Read(b) }
func (s *streamed) Write(b []byte) (int, error) { return s.w.Write(b) }
func (s *streamed) CloseWrite() error           { return s.w.Close() }
func (s *streamed) Close() error                { s.end(); return nil }

func (s *streamed) SetDeadline(time.Time) error      { return nil }
func (s *streamed) SetReadDeadline(time.Time) error  { return nil }
func (s *streamed) SetWriteDeadline(time.Time) error { return nil }

func portOf(t testing.TB, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func echoBackend(t testing.TB) string {
	t.Helper()
	return tcpBackend(t, func(c *net.TCPConn) { _, _ = io.Copy(c, c); _ = c.CloseWrite() })
}

// Tunnels lead to the destination that is asked for, by name and by address, or to a backend, over both versions.
func TestConnect(t *testing.T) {
	t.Parallel()
	echo := echoBackend(t)
	port := portOf(t, echo)
	for name, open := range openers {
		for _, host := range []string{"127.0.0.1", "localhost", "fixed.test"} {
			t.Run(name+" "+host, func(t *testing.T) {
				g := gatewaytest.Start(t, tunnelConfig(port, "http://127.0.0.1:1", ""))
				to := host + ":" + port
				c, status := open(t, g.Addr("proxy"), to)
				if status != 200 {
					t.Fatalf("status %d", status)
				}
				_, _ = io.WriteString(c, "hello")
				_ = c.CloseWrite()
				if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
					t.Errorf("%q, %v", got, err)
				}
				line := g.Lines.Next(t)
				backend := to
				if host == "fixed.test" {
					backend = "tcp://127.0.0.1:" + port
				}
				if line.Text("method") != "CONNECT" || line.Text("host") != to || line.Number("status") != 200 || line.Text("outcome") != "upgraded" ||
					line.Text("backend") != backend || line.Number("response_bytes") != 5 || line.Text("entrypoint") != "proxy" {
					t.Errorf("line %v", line)
				}
			})
		}
	}
}

// Who may not get anywhere is told so, and nothing is dialed.
func TestConnectRefused(t *testing.T) {
	dialed := make(chan struct{}, 10)
	addr := tcpBackend(t, func(*net.TCPConn) { dialed <- struct{}{} })
	port := portOf(t, addr)
	g := gatewaytest.Start(t, tunnelConfig(port, "http://127.0.0.1:1", ""))
	tests := []struct {
		target string
		status int
		code   string
	}{
		{"127.0.0.2:" + port, 403, "destination_not_allowed"}, // special, and not allowed by this service
		{"127.0.0.1:1", 403, "destination_not_allowed"},       // another port
		{"other.test:" + port, 403, "connect_not_allowed"},    // the router of everything is not meant
		{"localhost", 400, "bad_request"},
		{"localhost:0", 400, "bad_request"},
	}
	for name, open := range openers {
		for _, tt := range tests {
			t.Run(name+" "+tt.target, func(t *testing.T) {
				_, status := open(t, g.Addr("proxy"), tt.target)
				line := g.Lines.Next(t)
				if status != tt.status || line.Text("error_code") != tt.code || line.Number("status") != float64(tt.status) {
					t.Errorf("status %d, line %v", status, line)
				}
			})
		}
	}
	if res, _ := gatewaytest.Dial(t, g.Addr("proxy")).Get("/"); res.StatusCode != 405 {
		t.Errorf("GET: %d", res.StatusCode)
	}
	if _, status := openOne(t, g.Addr("web"), "127.0.0.1:"+port); status != 501 {
		t.Errorf("CONNECT elsewhere: %d", status)
	}
	if len(dialed) > 0 {
		t.Error("the destination was dialed")
	}
}

// What is inside a tunnel is served like any connection, by the routers that name its entrypoint alone.
func TestReentry(t *testing.T) {
	t.Parallel()
	backend := gatewaytest.NewBackend(t, "app")
	for name, open := range openers {
		t.Run(name, func(t *testing.T) {
			g := gatewaytest.Start(t, tunnelConfig("1", backend.URL, ""))
			c, status := open(t, g.Addr("proxy"), "inside.test:80")
			if status != 200 {
				t.Fatalf("status %d", status)
			}
			one := gatewaytest.NewClient(t, c)
			for range 3 {
				if res, _ := one.Get("/a"); res.StatusCode != 200 {
					t.Fatalf("inside: %d", res.StatusCode)
				}
				line := g.Lines.Next(t)
				if line.Text("entrypoint") != "inner" || line.Text("router") != "inner" || !strings.HasPrefix(line.Text("client_ip"), "127.0.0.1") {
					t.Errorf("line %v", line)
				}
			}
			one.Send("HEAD /a HTTP/1.1\r\nHost: other.test\r\n\r\n")
			if res := one.Response(); res.StatusCode != 404 {
				t.Errorf("the router of everything: %d", res.StatusCode)
			}
			g.Lines.Next(t)
			if res, _ := one.Get("/a", "Connection: close"); res.StatusCode != 200 {
				t.Errorf("last one: %d", res.StatusCode)
			}
			one.Closed()
			g.Lines.Next(t)
			if line := g.Lines.Next(t); line.Text("entrypoint") != "proxy" || line.Text("outcome") != "upgraded" || line.Number("response_bytes") == 0 {
				t.Errorf("line of the tunnel %v", line)
			}
		})
	}
}

// Inside a tunnel HTTP/2 is spoken, too: streams in a stream.
func TestReentryHTTP2(t *testing.T) {
	backend := gatewaytest.NewBackend(t, "app")
	for name, open := range openers {
		t.Run(name, func(t *testing.T) {
			g := gatewaytest.Start(t, tunnelConfig("1", backend.URL, ""))
			c, _ := open(t, g.Addr("proxy"), "inside.test:80")
			tr := &http2.Transport{AllowHTTP: true, DialTLSContext: func(context.Context, string, string, *tls.Config) (net.Conn, error) { return c, nil }}
			defer tr.CloseIdleConnections()
			for range 3 {
				req, _ := http.NewRequestWithContext(t.Context(), "GET", "http://app.test/a", nil)
				res, err := tr.RoundTrip(req)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, res.Body)
				_ = res.Body.Close()
				if res.StatusCode != 200 || res.ProtoMajor != 2 {
					t.Fatalf("%s %d", res.Proto, res.StatusCode)
				}
			}
		})
	}
}

// KF_TUN_01: bytes in either direction keep a tunnel, silence in both ends it.
func TestKF_TUN_01_IdleTunnel(t *testing.T) {
	t.Parallel()
	const pieces = 10
	addr := tcpBackend(t, func(c *net.TCPConn) {
		for range pieces {
			time.Sleep(250 * time.Millisecond) // what is measured
			_, _ = io.WriteString(c, "x")
		}
		_, _ = io.Copy(io.Discard, c)
	})
	for name, open := range openers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := gatewaytest.Start(t, tunnelConfig(portOf(t, addr), "http://127.0.0.1:1", `tcp_idle_timeout = "2s"`))
			c, _ := open(t, g.Addr("proxy"), addr)
			got := make([]byte, pieces)
			if n, err := io.ReadFull(c, got); err != nil {
				t.Fatalf("after %d bytes: %v", n, err)
			}
			if _, err := c.Read(got); err == nil {
				t.Error("silence did not end the tunnel")
			}
			if line := g.Lines.Next(t); line.Text("error_code") != "idle_timeout" || line.Text("limit") != "tcp_idle_timeout" || line.Text("outcome") != "timeout" {
				t.Errorf("line %v", line)
			}
		})
	}
}

// KF_TUN_02: a tunnel whose client has ended, to a destination that never does, ends within the bound.
func TestKF_TUN_02_HalfClosed(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	addr := tcpBackend(t, func(c *net.TCPConn) {
		_, _ = io.Copy(io.Discard, c)
		<-over
	})
	t.Cleanup(func() { close(over) })
	for name, open := range openers {
		t.Run(name, func(t *testing.T) {
			g := gatewaytest.Start(t, tunnelConfig(portOf(t, addr), "http://127.0.0.1:1", `tcp_half_close_timeout = "200ms"`))
			c, _ := open(t, g.Addr("proxy"), addr)
			_ = c.CloseWrite()
			if line := g.Lines.Next(t); line.Text("limit") != "tcp_half_close_timeout" {
				t.Errorf("line %v", line)
			}
		})
	}
}

// KF_TUN_03: the end of a destination arrives as what it is.
func TestKF_TUN_03_DestinationEnds(t *testing.T) {
	ends := map[string]func(c *net.TCPConn){
		"FIN": func(c *net.TCPConn) {
			_, _ = io.WriteString(c, "all of it")
			_ = c.CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		},
		"reset": func(c *net.TCPConn) {
			_, _ = io.WriteString(c, "all of it")
			_, _ = c.Read(make([]byte, 1))
			_ = c.SetLinger(0)
		},
	}
	for end, serve := range ends {
		addr := tcpBackend(t, serve)
		for name, open := range openers {
			t.Run(end+" "+name, func(t *testing.T) {
				g := gatewaytest.Start(t, tunnelConfig(portOf(t, addr), "http://127.0.0.1:1", ""))
				c, _ := open(t, g.Addr("proxy"), addr)
				got := make([]byte, len("all of it"))
				if _, err := io.ReadFull(c, got); err != nil || string(got) != "all of it" {
					t.Fatalf("%q, %v", got, err)
				}
				if end == "reset" {
					_, _ = io.WriteString(c, "!")
				}
				_, err := c.Read(got)
				if (end == "FIN") != (err == io.EOF) || err == nil {
					t.Errorf("then: %v", err)
				}
			})
		}
	}
}

// A tunnel outlives a reload and lets a shutdown wait for its end, until the deadline.
func TestConnectReloadAndDrain(t *testing.T) {
	t.Parallel()
	echo := echoBackend(t)
	for name, open := range openers {
		t.Run(name, func(t *testing.T) {
			text := tunnelConfig(portOf(t, echo), "http://127.0.0.1:1", "") + "shutdown_timeout_secs = 600\n"
			g := gatewaytest.Start(t, text)
			c, _ := open(t, g.Addr("proxy"), echo)
			inside, _ := open(t, g.Addr("proxy"), "inside.test:1")
			g.Apply(strings.Replace(text, `routers "out"`, `routers "renamed"`, 1))
			exchanges := func() {
				t.Helper()
				_, _ = io.WriteString(c, "ping")
				if got := make([]byte, 4); true {
					if _, err := io.ReadFull(c, got); err != nil || string(got) != "ping" {
						t.Fatalf("%q, %v", got, err)
					}
				}
			}
			exchanges()
			down := make(chan error, 1)
			go func() { down <- g.Shutdown(context.Background()) }()
			if _, err := inside.Read(make([]byte, 1)); err == nil { // idle inside: ends at once
				t.Error("an idle connection inside a tunnel goes on")
			}
			exchanges()
			g.Force()
			if err := <-down; err != nil {
				t.Errorf("shutdown: %v", err)
			}
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("the tunnel goes on")
			}
		})
	}
}
