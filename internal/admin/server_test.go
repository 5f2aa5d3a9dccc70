package admin_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/config"
)

func TestTLS(t *testing.T) {
	a, stranger := newAuthority(t), newAuthority(t)
	cert, key := a.server("server")
	server := func(ca string, require bool) *admin.Server {
		return open(t, block(func(c *config.Management) {
			c.TLS = &config.ManagementTLS{
				TLS:               config.TLS{KeyPair: config.KeyPair{CertFile: cert, KeyFile: key}, MinVersion: tls.VersionTLS12, ClientCAFile: ca},
				RequireClientCert: require,
			}
		}), nil)
	}
	ca := filepath.Join(a.dir, "ca.pem")
	for name, c := range map[string]struct {
		server *admin.Server
		signer *authority // nil: no client certificate
		ok     bool
	}{
		"server certificate only": {server("", false), nil, true},
		"optional, none":          {server(ca, false), nil, true},
		"optional, good":          {server(ca, false), a, true},
		"optional, bad":           {server(ca, false), stranger, false},
		"required, none":          {server(ca, true), nil, false},
		"required, good":          {server(ca, true), a, true},
		"required, bad":           {server(ca, true), stranger, false},
	} {
		for _, h2 := range []bool{false, true} {
			url := "https://" + c.server.Addr(admin.SocketMain).String() + "/api/gateway/health"
			r, err := call{url: url, tls: a.client(c.signer), h2: h2}.try()
			if ok := err == nil && r.status == 200; ok != c.ok {
				t.Errorf("%s (h2 %v): %d %v, want ok %v", name, h2, r.status, err, c.ok)
			}
			if want := map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[h2]; c.ok && r.proto != want {
				t.Errorf("%s: %s, want %s", name, r.proto, want)
			}
		}
	}
	if r, err := (call{url: base(server("", false)) + "/api/gateway/health"}).try(); err == nil && r.status == 200 {
		t.Error("a TLS socket answers clear text")
	}
}

func TestBadCandidatesChangeNothing(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.server("server")
	empty := filepath.Join(a.dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s := open(t, block(func(c *config.Management) { c.TokenEnv = "TOKEN" }), nil)
	tlsBlock := func(c config.ManagementTLS) func(*config.Management) {
		return func(m *config.Management) { m.TLS = &c }
	}
	files := config.TLS{KeyPair: config.KeyPair{CertFile: cert, KeyFile: key}}
	for name, change := range map[string]func(*config.Management){
		"unset token":        func(c *config.Management) { c.TokenEnv = "NO_SUCH_VARIABLE" },
		"empty token":        func(c *config.Management) { c.TokenEnv = "EMPTY" },
		"address in use":     func(c *config.Management) { c.Address = taken.Addr().String() },
		"probe in use":       func(c *config.Management) { c.Address, c.ProbeAddress = "127.0.0.2:0", taken.Addr().String() },
		"no certificate":     tlsBlock(config.ManagementTLS{TLS: config.TLS{KeyPair: config.KeyPair{CertFile: empty, KeyFile: key}}}),
		"no client CA":       tlsBlock(config.ManagementTLS{TLS: config.TLS{KeyPair: files.KeyPair, ClientCAFile: filepath.Join(a.dir, "none")}}),
		"empty client CA":    tlsBlock(config.ManagementTLS{TLS: config.TLS{KeyPair: files.KeyPair, ClientCAFile: empty}}),
		"require without CA": tlsBlock(config.ManagementTLS{TLS: files, RequireClientCert: true}),
	} {
		if _, err := s.Prepare(block(change)); err == nil {
			t.Errorf("%s: accepted", name)
		} else if strings.Contains(err.Error(), "s3cret") || !strings.HasPrefix(err.Error(), "management: ") {
			t.Errorf("%s: %v", name, err)
		}
		if r := (call{url: base(s) + "/api/gateway/health", header: bearer("s3cret")}).do(t); r.status != 200 {
			t.Errorf("%s: the running listener answers %d", name, r.status)
		}
	}
}

func TestReloadOnTheSameSocket(t *testing.T) {
	a := newAuthority(t)
	s := open(t, block(func(c *config.Management) { c.TokenEnv = "TOKEN" }), nil)
	address := s.Addr(admin.SocketMain)

	// A kept-alive connection of the time before.
	old, err := net.Dial("tcp", address.String())
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	ask := func() (*http.Response, error) {
		_, _ = io.WriteString(old, "GET /api/gateway/health HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer s3cret\r\n\r\n")
		return http.ReadResponse(bufio.NewReader(old), nil)
	}
	if r, err := ask(); err != nil || r.StatusCode != 200 {
		t.Fatalf("%v", err)
	}

	apply(t, s, block(func(c *config.Management) { c.TokenEnv, c.PathPrefix = "OTHER", "/ops" }))
	if got := s.Addr(admin.SocketMain); got.String() != address.String() {
		t.Errorf("the socket moved from %v to %v", address, got)
	}
	for token, status := range map[string]int{"s3cret": 401, "another": 200} {
		if r := (call{url: base(s) + "/ops/health", header: bearer(token)}).do(t); r.status != status {
			t.Errorf("token %q: %d, want %d", token, r.status, status)
		}
	}
	if r, err := ask(); err == nil && r.StatusCode == 200 && r.Body.Close() == nil {
		t.Error("a connection from before still takes the old token")
	}

	cert, key := a.server("server")
	apply(t, s, block(func(c *config.Management) {
		c.TLS = &config.ManagementTLS{TLS: config.TLS{KeyPair: config.KeyPair{CertFile: cert, KeyFile: key}}}
	}))
	url := "https://" + address.String() + "/api/gateway/health"
	if r := (call{url: url, tls: a.client(nil)}).do(t); r.status != 200 {
		t.Errorf("with TLS: %d", r.status)
	}
	// The files are read again, also when the block is the same.
	b := newAuthority(t)
	b.dir = a.dir
	b.server("server")
	apply(t, s, block(func(c *config.Management) {
		c.TLS = &config.ManagementTLS{TLS: config.TLS{KeyPair: config.KeyPair{CertFile: cert, KeyFile: key}}}
	}))
	if r := (call{url: url, tls: b.client(nil)}).do(t); r.status != 200 {
		t.Errorf("with the new certificate: %d", r.status)
	}
}

// A connection from before a change, whether it has carried a request or not, opens nothing that the new settings close.
func TestOldConnectionsAreJudgedByNewSettings(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	cert, key := a.server("server")
	withTLS := func(require bool) func(*config.Management) {
		return func(c *config.Management) {
			c.TokenEnv = "TOKEN"
			c.TLS = &config.ManagementTLS{TLS: config.TLS{KeyPair: config.KeyPair{CertFile: cert, KeyFile: key}}}
			if require {
				c.TLS.RequireClientCert, c.TLS.ClientCAFile = true, filepath.Join(a.dir, "ca.pem")
			}
		}
	}
	token := func(c *config.Management) { c.TokenEnv = "TOKEN" }
	for name, c := range map[string]struct {
		before, after func(*config.Management)
		status        int // of a request with the token from before, on a connection that has carried none
	}{
		"other token":       {token, func(c *config.Management) { c.TokenEnv = "OTHER" }, 401},
		"other prefix":      {token, func(c *config.Management) { c.TokenEnv, c.PathPrefix = "TOKEN", "/ops" }, 404},
		"other peers":       {token, func(c *config.Management) { c.AllowedIPs = prefixes("192.0.2.0/24") }, 403},
		"no token":          {token, nil, 200},
		"TLS":               {token, withTLS(false), 503},
		"the same TLS":      {withTLS(false), withTLS(false), 200},
		"no TLS":            {withTLS(false), token, 200},
		"a client's name":   {withTLS(false), withTLS(true), 503},
		"no client's name":  {withTLS(true), withTLS(false), 200},
		"the client's name": {withTLS(true), withTLS(true), 200},
		"another authority": {withTLS(true), func(c *config.Management) {
			withTLS(true)(c)
			c.TLS.ClientCAFile = filepath.Join(other.dir, "ca.pem")
		}, 503},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, block(c.before), nil)
			dial := func() net.Conn {
				conn, err := net.Dial("tcp", s.Addr(admin.SocketMain).String())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
				if b := block(c.before); b.TLS != nil {
					cfg := a.client(a)
					cfg.ServerName = "127.0.0.1"
					return tls.Client(conn, cfg)
				}
				return conn
			}
			ask := func(c net.Conn) (int, error) {
				_, _ = io.WriteString(c, "GET /api/gateway/health HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer s3cret\r\n\r\n")
				r, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					return 0, err
				}
				_, _ = io.Copy(io.Discard, r.Body)
				return r.StatusCode, r.Body.Close()
			}
			// The one accepted first is with its server when the other has its answer.
			fresh, used := dial(), dial()
			if c, ok := fresh.(*tls.Conn); ok {
				if err := c.Handshake(); err != nil {
					t.Fatal(err)
				}
			}
			if status, err := ask(used); status != 200 || err != nil {
				t.Fatalf("before the change: %d, %v", status, err)
			}
			apply(t, s, block(c.after))
			if status, err := ask(fresh); status != c.status || err != nil {
				t.Errorf("first request of a connection from before: %d, %v; want %d", status, err, c.status)
			}
			if status, err := ask(used); err == nil && status != c.status {
				t.Errorf("second request of a connection from before: %d, want none or %d", status, c.status)
			}
		})
	}
}

// One connection more than there may be is closed without an answer, and each that ends makes room.
func TestConnectionsAreBounded(t *testing.T) {
	s := open(t, block(nil), nil)
	const most = 256
	answered := func() (net.Conn, bool) {
		c, err := net.Dial("tcp", s.Addr(admin.SocketMain).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		_, _ = io.WriteString(c, "GET /api/gateway/livez HTTP/1.1\r\nHost: x\r\n\r\n")
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		return c, err == nil && r.StatusCode == 200 && r.Body.Close() == nil
	}
	var open []net.Conn
	for range most {
		c, ok := answered()
		if !ok {
			t.Fatalf("connection %d is not served", len(open)+1)
		}
		open = append(open, c)
	}
	if _, ok := answered(); ok {
		t.Errorf("connection %d is served", most+1)
	}
	for _, c := range open[:2] {
		c.Close()
	}
	for n, end := 0, time.Now().Add(time.Minute); n < 2; { // the server hears of the two ends in its own time
		if _, ok := answered(); ok {
			n++
		} else if time.Now().After(end) {
			t.Fatalf("of two ended connections %d made room", n)
		}
	}
	if _, ok := answered(); ok {
		t.Error("two ended connections made room for three")
	}
}

func TestUnchangedReloadKeepsConnections(t *testing.T) {
	cfg := block(func(c *config.Management) { c.TokenEnv = "TOKEN" })
	s := open(t, cfg, nil)
	c, err := net.Dial("tcp", s.Addr(admin.SocketMain).String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := bufio.NewReader(c)
	for i := range 3 {
		_, _ = io.WriteString(c, "GET /api/gateway/livez HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer s3cret\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		apply(t, s, cfg)
	}
}

func TestMoveAndDisable(t *testing.T) {
	s := open(t, block(func(c *config.Management) { c.ProbeAddress = "127.0.0.1:0" }), nil)
	first := base(s)
	if len(s.Sockets()) != 2 {
		t.Errorf("sockets: %v", s.Sockets())
	}

	p, err := s.Prepare(block(func(c *config.Management) { c.Address = "127.0.0.2:0" }))
	if err != nil {
		t.Fatal(err)
	}
	if r := (call{url: first + "/api/gateway"}).do(t); r.status != 200 {
		t.Errorf("while a change is prepared: %d", r.status)
	}
	p.Abort()
	if base(s) != first {
		t.Error("an aborted change moved the socket")
	}

	apply(t, s, block(func(c *config.Management) { c.Address = "127.0.0.2:0" }))
	if r := (call{url: base(s) + "/api/gateway"}).do(t); r.status != 200 || base(s) == first {
		t.Errorf("after the move to %s: %d", base(s), r.status)
	}
	if _, err := (call{url: first + "/api/gateway"}).try(); err == nil {
		t.Error("the old address still answers")
	}
	if s.Addr(admin.SocketProbe) != nil {
		t.Error("the probe socket is still there")
	}

	second := base(s)
	apply(t, s, config.Management{})
	if _, err := (call{url: second + "/api/gateway"}).try(); err == nil || s.Addr(admin.SocketMain) != nil {
		t.Error("a disabled listener answers")
	}
	apply(t, s, block(nil))
	if r := (call{url: base(s) + "/api/gateway"}).do(t); r.status != 200 {
		t.Errorf("switched on again: %d", r.status)
	}
}

func TestAbortFreesTheAddress(t *testing.T) {
	s := open(t, config.Management{}, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	for range 2 {
		p, err := s.Prepare(block(func(c *config.Management) { c.Address = address }))
		if err != nil {
			t.Fatal(err)
		}
		p.Abort()
	}
}

func TestInheritedSocket(t *testing.T) {
	inherited, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, block(func(c *config.Management) { c.Address = inherited.Addr().String() }), func(d *admin.Deps) {
		d.Listen = func(name, address string) (net.Listener, error) {
			if name != admin.SocketMain || address != inherited.Addr().String() {
				return nil, errors.New("not handed over")
			}
			return inherited, nil
		}
	})
	if r := (call{url: base(s) + "/api/gateway"}).do(t); r.status != 200 || s.Sockets()[admin.SocketMain] != inherited {
		t.Errorf("%d, %v", r.status, s.Sockets())
	}
}

// More connections than allowed are closed at once; when some have gone there is room again.
func TestConnectionLimit(t *testing.T) {
	s := open(t, block(nil), nil)
	address := s.Addr(admin.SocketMain).String()
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	for range 256 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, c)
	}
	if r, err := (call{url: base(s) + "/api/gateway"}).try(); err == nil {
		t.Errorf("connection 257 got %d", r.status)
	}
	for _, c := range held {
		c.Close()
	}
	held = nil
	deadline := time.Now().Add(10 * time.Second)
	for {
		if r, err := (call{url: base(s) + "/api/gateway"}).try(); err == nil && r.status == 200 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no room although all connections have gone")
		}
	}
}

func TestClose(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	s := open(t, block(nil), func(d *admin.Deps) {
		d.Views.Config = func() any {
			close(started)
			<-release
			return "done"
		}
	})
	url := base(s)
	got := make(chan reply, 1)
	go func() {
		r, _ := call{url: url + "/api/gateway/config"}.try()
		got <- r
	}()
	<-started
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.Close(context.Background())
	}()
	for { // the socket closes first
		c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			break
		}
		c.Close()
	}
	close(release)
	if r := <-got; r.status != 200 {
		t.Errorf("a running request ended with %d", r.status)
	}
	<-closed
	if _, err := s.Prepare(block(nil)); !errors.Is(err, admin.ErrClosed) {
		t.Errorf("Prepare after Close: %v", err)
	}
}

func TestCloseCutsOff(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	s := open(t, block(nil), func(d *admin.Deps) {
		d.Views.Config = func() any {
			close(started)
			<-release
			return "late"
		}
	})
	url := base(s)
	got := make(chan error, 1)
	go func() {
		_, err := call{url: url + "/api/gateway/config"}.try()
		got <- err
	}()
	<-started
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s.Close(ctx)
	if err := <-got; err == nil {
		t.Error("the request got an answer")
	}
	close(release)
}
