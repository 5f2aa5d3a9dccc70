package http1_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// peer is the client's end of a connection to a server under test.
type peer interface {
	net.Conn
	CloseWrite() error
}

// mode is a kind of connection that every test of the server runs on.
type mode struct {
	name string
	tls  bool
	// pair makes a connection: the client's end, and the server's end as the accept path would hand it over.
	pair func(t testing.TB) (peer, conn.Conn)
}

var modes = []mode{
	{"kernel", false, func(t testing.TB) (peer, conn.Conn) {
		near, far := tcpPair(t)
		return near, kernelConn(far)
	}},
	{"plain", false, func(t testing.TB) (peer, conn.Conn) {
		near, far := tcpPair(t)
		return near, conn.NewPlain(far, conn.Info{})
	}},
	{"tls", true, func(t testing.TB) (peer, conn.Conn) {
		near, far := tcpPair(t)
		return tlsPair(t, near, kernelConn(far))
	}},
	{"memory", false, func(testing.TB) (peer, conn.Conn) { return conn.Pipe() }},
}

// kernelConn takes an accepted connection over the way the accept path does.
func kernelConn(c net.Conn) conn.Conn {
	if r, ok := rawOf(c); ok {
		return r
	}
	return conn.NewPlain(c, conn.Info{})
}

var loopbackListener = sync.OnceValues(func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") })

var dialing sync.Mutex // one dial at a time, so that the two ends belong together

func tcpPair(t testing.TB) (near *net.TCPConn, far net.Conn) {
	t.Helper()
	l, err := loopbackListener()
	if err != nil {
		t.Fatal(err)
	}
	dialing.Lock()
	defer dialing.Unlock()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if far, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn), far
}

// tlsPair does the handshake over a pair.
func tlsPair(t testing.TB, near net.Conn, far net.Conn) (peer, conn.Conn) {
	t.Helper()
	server := tls.Server(far, serverTLS())
	client := tls.Client(near, clientTLS())
	done := make(chan error, 1)
	go func() { done <- server.Handshake() }()
	if err := client.Handshake(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	state := server.ConnectionState()
	return client, conn.NewPlain(server, conn.Info{TLS: &state})
}

var certificate = sync.OnceValue(func() tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: []string{"test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
})

func serverTLS() *tls.Config { return &tls.Config{Certificates: []tls.Certificate{certificate()}} }

func tlsServer(c net.Conn) *tls.Conn { return tls.Server(c, serverTLS()) }

func clientTLS() *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(certificate().Leaf)
	return &tls.Config{RootCAs: roots, ServerName: "test"}
}

// testClock runs for the length of a test.
func testClock(t testing.TB) *conn.Clock {
	clock := conn.NewClock()
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = clock.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-stopped
		if n := clock.Len(); n != 0 {
			t.Errorf("%d entries stayed on the clock", n)
		}
	})
	return clock
}

// ticks counts the visits of a clock. What the clock has to find within a time is measured with them: on a machine that is
// busy with something else the clock is late, and what it serves is not at fault.
type ticks struct {
	n    atomic.Int64
	slot conn.ClockSlot
}

const ticksASecond = int64(time.Second / conn.Tick)

// count counts for the length of a test.
func (k *ticks) count(t testing.TB, clock *conn.Clock) {
	clock.Add(k)
	t.Cleanup(func() { clock.Remove(k) })
}

func (k *ticks) OnTick(*conn.Clock) int { k.n.Add(1); return -1 }
func (k *ticks) OnDeparted()            {}
func (k *ticks) Slot() *conn.ClockSlot  { return &k.slot }

// settings are the usual ones for a handler.
func settings(h exchange.Handler) *http1.Settings {
	return &http1.Settings{
		Limits:        http1.Limits{MaxHeaderBytes: 8 << 10, MaxHeaders: 32},
		Handler:       h,
		HeaderTimeout: 20 * time.Second, BodyIdleTimeout: 20 * time.Second, WriteIdleTimeout: 20 * time.Second, KeepAliveTimeout: 20 * time.Second,
	}
}

// site is a server under test.
type site struct {
	t    testing.TB
	mode mode
	srv  *http1.Server
	live drain.Tracker
	wg   sync.WaitGroup

	mu  sync.Mutex // guards the field below
	far conn.Conn  // the server's end of the last connection
}

// serve starts a server; its connections are forced when the test ends.
func serve(t testing.TB, m mode, clock *conn.Clock, s *http1.Settings) *site {
	st := &site{t: t, mode: m, srv: http1.NewServer(s, clock, nil)}
	t.Cleanup(st.stop)
	return st
}

func (s *site) stop() {
	s.live.Force()
	s.wg.Wait()
}

// dial returns the client's end of a new connection; it is closed with the test.
func (s *site) dial() peer {
	s.t.Helper()
	near, far := s.mode.pair(s.t)
	s.mu.Lock()
	s.far = far
	s.mu.Unlock()
	s.wg.Go(func() { s.srv.ServeConn(far, &s.live) })
	_ = near.SetDeadline(time.Now().Add(20 * time.Second))
	s.t.Cleanup(func() { _ = near.Close() })
	return near
}

// eachMode runs a test on every kind of connection, all at once and beside other tests.
func eachMode(t *testing.T, f func(t *testing.T, m mode)) {
	t.Parallel()
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			f(t, m)
		})
	}
}

// readBody reads the whole request body.
func readBody(x *exchange.Exchange) ([]byte, error) {
	var body []byte
	for {
		p, err := x.Down.ReadBody()
		body = append(body, p...)
		x.Down.ReleaseBody()
		if err == io.EOF {
			return body, nil
		}
		if err != nil {
			return body, err
		}
	}
}

// echo answers with the method, the target and the body.
func echo(x *exchange.Exchange) error {
	body, err := readBody(x)
	if err != nil {
		return err
	}
	x.Response.Status = 200
	x.Response.ContentLength = -1
	x.Response.Fields.Add("X-Seen", string(x.Request.Method)+" "+string(x.Request.Target))
	return x.Send(body, true)
}

// eventually waits for something that another goroutine or the kernel brings about.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// abort closes a client's end with a reset.
func abort(t testing.TB, c peer) {
	t.Helper()
	switch c := c.(type) {
	case *conn.MemoryConn:
		_ = c.Abort()
	case *tls.Conn:
		_ = c.NetConn().(*net.TCPConn).SetLinger(0)
		_ = c.NetConn().Close()
	case *net.TCPConn:
		_ = c.SetLinger(0)
		_ = c.Close()
	default:
		t.Fatalf("no reset for %T", c)
	}
}
