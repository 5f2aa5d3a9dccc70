package tunnel_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds whatever a test waits for.
const patience = 20 * time.Second

// authority signs certificates of one test.
type authority struct {
	t    testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t, pool: x509.NewCertPool()}
	a.key = newKey(t)
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert = sign(t, tmpl, tmpl, &a.key.PublicKey, a.key)
	a.pool.AddCert(a.cert)
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sign(t testing.TB, tmpl, parent *x509.Certificate, pub *ecdsa.PublicKey, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// mutual is the TLS of the holder of a URI, who talks to the holder of another one.
func (a *authority) mutual(own, peer string, protocols ...string) *tls.Config {
	a.t.Helper()
	key := newKey(a.t)
	u, err := url.Parse(own)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf := sign(a.t, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), URIs: []*url.URL{u},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}, a.cert, &key.PublicKey, a.key)
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}},
		NextProtos:   protocols, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: a.pool, InsecureSkipVerify: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			c := s.PeerCertificates[0]
			if _, err := c.Verify(x509.VerifyOptions{Roots: a.pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
				return err
			}
			if len(c.URIs) != 1 || c.URIs[0].String() != peer {
				return errors.New("another peer")
			}
			return nil
		},
	}
}

// clock runs as long as the test.
func clock(t testing.TB) *conn.Clock {
	t.Helper()
	c := conn.NewClock()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = c.Run(ctx) })
	t.Cleanup(func() {
		for end := time.Now().Add(patience); c.Len() > 0 && time.Now().Before(end); {
			time.Sleep(time.Millisecond) // connections that have been told to end
		}
		if n := c.Len(); n > 0 {
			t.Errorf("%d entries stayed on the clock", n)
		}
		cancel()
		running.Wait()
	})
	return c
}

// site is a server of tunnels on a socket.
type site struct {
	addr     string
	accepted atomic.Int64 // connections
	live     drain.Tracker
	l        net.Listener
	stop     func()

	mu    sync.Mutex // guards conns
	conns []net.Conn
}

// kick ends every connection as a process does that dies.
func (s *site) kick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		_ = c.Close()
	}
	s.conns = nil
}

const (
	workerURI = "spiffe://test/worker"
	routerURI = "spiffe://test/router"
)

// serve accepts tunnels until the test ends.
func serve(t testing.TB, k *conn.Clock, cfg tunnel.ServerConfig, tc *tls.Config) *site {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := tunnel.NewServer(cfg, k)
	s := &site{addr: l.Addr().String(), l: l}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.accepted.Add(1)
			s.mu.Lock()
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			running.Go(func() { s.one(srv, c, tc) })
		}
	})
	s.stop = sync.OnceFunc(func() {
		_ = l.Close()
		s.live.Force()
		running.Wait()
	})
	t.Cleanup(s.stop)
	return s
}

func (s *site) one(srv *tunnel.Server, c net.Conn, tc *tls.Config) {
	tlsConn := tls.Server(c, tc)
	if tlsConn.Handshake() != nil {
		_ = c.Close()
		return
	}
	state := tlsConn.ConnectionState()
	info := conn.Info{TLS: &state, Identity: state.PeerCertificates[0].URIs[0].String()}
	if state.NegotiatedProtocol == "h2" {
		srv.ServeHTTP2(conn.NewPlain(tlsConn, info), &s.live)
		return
	}
	srv.ServeHTTP1(conn.NewPlain(tlsConn, info), &s.live)
}

// within fails the test when ch says nothing in time.
func within[T any](t testing.TB, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatalf("%s did not happen", what)
	}
	return v
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		time.Sleep(time.Millisecond) // looking again
	}
}
