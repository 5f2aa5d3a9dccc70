package http2_test

//lint:file-ignore SA1019 the foreign client is chosen for its own transport: it takes any connection and speaks without TLS

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	xhttp2 "golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http2"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds whatever a test waits for. It is not a duration that anything should take.
const patience = 20 * time.Second

// mode is a kind of connection that every test runs on.
type mode struct {
	name string
	tls  bool
	wrap func(net.Conn) conn.Conn
	// prefixed has the test read the preface before the server gets the connection, as the HTTP/1 engine does.
	prefixed bool
}

func plainConn(c net.Conn) conn.Conn { return conn.NewPlain(c, conn.Info{}) }

var modes = []mode{
	{name: "kernel", wrap: kernelConn, prefixed: true},
	{name: "plain", wrap: plainConn},
	{name: "tls", tls: true, wrap: plainConn},
}

// rig is a running server.
type rig struct {
	*http2.Server
	mode
	addr string
	live drain.Tracker // of its connections
	// connDone is closed when the first connection's ServeConn has returned.
	connDone chan struct{}
}

func settings(h exchange.Handler) *http2.Settings {
	return &http2.Settings{
		Handler: h, MaxHeaderBytes: 8 << 10, MaxHeaders: 32, MaxStreams: 20,
		HeaderTimeout: time.Minute, BodyIdleTimeout: time.Minute, WriteIdleTimeout: time.Minute, KeepAliveTimeout: time.Minute, // none ends what a test waits for
	}
}

// start serves on a loopback port until the test ends.
func start(t *testing.T, m mode, set *http2.Settings) *rig {
	t.Helper()
	clock := conn.NewClock()
	ctx, cancel := context.WithCancel(context.Background())
	var clocked, conns sync.WaitGroup
	clocked.Go(func() { _ = clock.Run(ctx) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Server: http2.NewServer(set, clock), mode: m, addr: l.Addr().String(), connDone: make(chan struct{})}
	var once sync.Once
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				r.serve(c)
				once.Do(func() { close(r.connDone) })
			})
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-accepting
		r.live.Force()
		conns.Wait()
		if n := r.live.Len(); n != 0 {
			t.Errorf("%d connections left over", n)
		}
		if n := clock.Len(); n != 0 {
			t.Errorf("%d clock entries left over", n)
		}
		cancel()
		clocked.Wait()
	})
	return r
}

// serve does for one connection what an entrypoint does.
func (r *rig) serve(c net.Conn) {
	switch {
	case r.tls:
		tc := tls.Server(c, serverTLS())
		if tc.Handshake() != nil {
			c.Close()
			return
		}
		state := tc.ConnectionState()
		r.ServeConn(conn.NewPlain(tc, conn.Info{TLS: &state}), &r.live)
	case r.prefixed:
		pre := make([]byte, len(xhttp2.ClientPreface))
		if _, err := io.ReadFull(c, pre); err != nil {
			c.Close()
			return
		}
		r.ServeConnWith(r.wrap(c), pre, &r.live)
	default:
		r.ServeConn(r.wrap(c), &r.live)
	}
}

var serverTLS = sync.OnceValue(func() *tls.Config {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"h2.test"}}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}, NextProtos: []string{"h2"}}
})

// dial connects the way the mode wants it.
func (r *rig) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", r.addr)
	if err != nil || !r.tls {
		return c, err
	}
	tc := tls.Client(c, &tls.Config{InsecureSkipVerify: true, ServerName: "h2.test", NextProtos: []string{"h2"}})
	if err := tc.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return tc, nil
}

// client is a foreign HTTP/2 client of the server.
func (r *rig) client(t *testing.T) *http.Client {
	tr := &xhttp2.Transport{
		AllowHTTP: true, DisableCompression: true,
		DialTLSContext: func(ctx context.Context, _, _ string, _ *tls.Config) (net.Conn, error) { return r.dial(ctx) },
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func (r *rig) url(path string) string {
	if r.tls {
		return "https://h2.test" + path
	}
	return "http://h2.test" + path
}

// each runs f on every kind of connection, beside other tests.
func each(t *testing.T, f func(t *testing.T, m mode)) {
	t.Parallel()
	inEachMode(t, f)
}

func inEachMode(t *testing.T, f func(t *testing.T, m mode)) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) { f(t, m) })
	}
}

func readAll(x *exchange.Exchange) ([]byte, error) {
	var all []byte
	for {
		b, err := x.Down.ReadBody()
		all = append(all, b...)
		x.Down.ReleaseBody()
		if err == io.EOF {
			return all, nil
		}
		if err != nil {
			return all, err
		}
	}
}

// answer sends a whole response.
func answer(x *exchange.Exchange, status int, body string) error {
	x.Response.Status = status
	return x.Send([]byte(body), true)
}

func get(t *testing.T, c *http.Client, url string) (*http.Response, string) {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(b)
}
