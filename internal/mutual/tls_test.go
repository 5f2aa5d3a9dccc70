package mutual_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/mutual"
)

const (
	serverURI = "spiffe://cluster.local/ns/demo/sa/worker"
	clientURI = "spiffe://cluster.local/ns/demo/sa/router"
)

// credential is a key and a certificate of the maker's, as a file holds them.
func (m *maker) credential(t *testing.T, uri string, change func(c *x509.Certificate)) []byte {
	t.Helper()
	u, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{URIs: []*url.URL{u}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	if change != nil {
		change(&template)
	}
	key := anyKey(t)
	return append(keyPEM(t, key), certPEM(m.sign(t, key, template))...)
}

func keyPEM(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func certPEM(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// side is one of two processes, with its files.
type side struct {
	t          *testing.T
	own, peers string // paths
	mutual.TLS
	asked atomic.Int64 // how often Check was
}

func newSide(t *testing.T, own, peers []byte, welcome string) *side {
	t.Helper()
	dir := t.TempDir()
	s := &side{t: t, own: filepath.Join(dir, "own"), peers: filepath.Join(dir, "peers")}
	s.replace(s.own, own)
	s.replace(s.peers, peers)
	credential, err := mutual.OpenCredential(s.own)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := mutual.OpenTrust(s.peers)
	if err != nil {
		t.Fatal(err)
	}
	s.TLS = mutual.TLS{Own: credential, Peers: trust, Check: func(uri string) error {
		s.asked.Add(1)
		if uri != welcome {
			return errors.New("somebody else")
		}
		return nil
	}}
	return s
}

// replace puts a file in the place of another, as who renews them does.
func (s *side) replace(path string, content []byte) {
	s.t.Helper()
	next := path + ".next"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		s.t.Fatal(err)
	}
}

// serve sends back what it gets until the test ends.
func serve(t *testing.T, config *tls.Config) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

// connect returns once both sides have accepted each other: in TLS 1.3 a client hears of a refusal only when it reads.
func connect(t *testing.T, address string, config *tls.Config) (*tls.Conn, error) {
	t.Helper()
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", address, config)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, say(c)
}

func say(c *tls.Conn) error {
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

func expired(c *x509.Certificate) {
	c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Second)
}

// Each side refuses what is not exactly the other.
func TestI2_ExactURI(t *testing.T) {
	m, stranger := newMaker(t), newMaker(t)
	trust := certPEM(m.cert)
	server := newSide(t, m.credential(t, serverURI, nil), trust, clientURI)
	address := serve(t, server.Server())
	for name, c := range map[string]struct {
		own    []byte
		expect string
		ok     bool
	}{
		"the right two":            {m.credential(t, clientURI, nil), serverURI, true},
		"a longer URI":             {m.credential(t, clientURI+"/x", nil), serverURI, false},
		"a shorter URI":            {m.credential(t, clientURI[:len(clientURI)-1], nil), serverURI, false},
		"another case":             {m.credential(t, "spiffe://Cluster.local/ns/demo/sa/router", nil), serverURI, false},
		"an expired client":        {m.credential(t, clientURI, expired), serverURI, false},
		"another authority":        {stranger.credential(t, clientURI, nil), serverURI, false},
		"a server that is another": {m.credential(t, clientURI, nil), serverURI + "/", false},
	} {
		t.Run(name, func(t *testing.T) {
			client := newSide(t, c.own, trust, c.expect)
			if _, err := connect(t, address, client.Client()); (err == nil) != c.ok {
				t.Errorf("%v, want ok %v", err, c.ok)
			}
		})
	}
}

// A client that was believed once and keeps what it was given for resumption is judged anew, in both versions: when it is
// not trusted any more, or its certificate has expired, it is refused.
func TestNobodyComesBackOnAnOldProof(t *testing.T) {
	m, next := newMaker(t), newMaker(t)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			server := newSide(t, m.credential(t, serverURI, nil), certPEM(m.cert), clientURI)
			address := serve(t, server.Server())
			client := newSide(t, m.credential(t, clientURI, nil), certPEM(m.cert), serverURI)
			config := client.Client()
			config.ClientSessionCache, config.SessionTicketsDisabled = tls.NewLRUClientSessionCache(4), false
			config.MinVersion, config.MaxVersion = version, version
			for range 2 {
				c, err := connect(t, address, config)
				if err != nil {
					t.Fatal(err)
				}
				if c.ConnectionState().DidResume {
					t.Error("a session was resumed")
				}
			}
			if server.asked.Load() != 2 {
				t.Errorf("%d of 2 handshakes were checked", server.asked.Load())
			}
			good := client.Own.(*mutual.Credential).Leaf()
			client.replace(client.own, m.credential(t, clientURI, expired))
			if _, err := connect(t, address, config); err == nil {
				t.Error("it comes back with an expired certificate")
			}
			client.replace(client.own, m.credential(t, clientURI, nil))
			if _, err := connect(t, address, config); err != nil || client.Own.Certificate().Leaf.Equal(good) {
				t.Errorf("with a new certificate: %v", err)
			}
			server.replace(server.peers, certPEM(next.cert))
			if _, err := connect(t, address, config); err == nil {
				t.Error("it comes back though it is not trusted any more")
			}
		})
	}
}

// A server that hands out tickets gets none of them back from us: its certificate is judged at every handshake.
func TestClientsNeverResume(t *testing.T) {
	m, next := newMaker(t), newMaker(t)
	pair := m.credential(t, serverURI, nil)
	own, err := tls.X509KeyPair(pair, pair)
	if err != nil {
		t.Fatal(err)
	}
	address := serve(t, &tls.Config{Certificates: []tls.Certificate{own}, ClientAuth: tls.RequestClientCert})
	client := newSide(t, m.credential(t, clientURI, nil), certPEM(m.cert), serverURI)
	config := client.Client()
	for n := range int64(3) {
		c, err := connect(t, address, config)
		if err != nil || c.ConnectionState().DidResume || client.asked.Load() != n+1 {
			t.Fatalf("%v, checked %d times after %d", err, client.asked.Load(), n+1)
		}
	}
	client.replace(client.peers, certPEM(next.cert))
	if _, err := connect(t, address, config); !errors.Is(err, mutual.ErrPeer) {
		t.Errorf("a server that is not trusted any more: %v", err)
	}
}

// Authority and certificates of both sides change while a connection is open: it goes on, and those that come after see
// the new ones.
func TestRotationDropsNothing(t *testing.T) {
	old, next := newMaker(t), newMaker(t)
	server := newSide(t, old.credential(t, serverURI, nil), certPEM(old.cert), clientURI)
	client := newSide(t, old.credential(t, clientURI, nil), certPEM(old.cert), serverURI)
	address, config := serve(t, server.Server()), client.Client()
	lasting, err := connect(t, address, config)
	if err != nil {
		t.Fatal(err)
	}
	both := append(certPEM(old.cert), certPEM(next.cert)...)
	renewed := [2][]byte{next.credential(t, serverURI, nil), next.credential(t, clientURI, nil)}
	for _, step := range []func(){
		func() { server.replace(server.peers, both) },
		func() { client.replace(client.peers, both) },
		func() { server.replace(server.own, renewed[0]) },
		func() { client.replace(client.own, renewed[1]) },
		func() { server.replace(server.peers, certPEM(next.cert)) },
		func() { client.replace(client.peers, certPEM(next.cert)) },
	} {
		step()
		c, err := connect(t, address, config)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.ConnectionState().PeerCertificates[0]; !got.Equal(server.Own.(*mutual.Credential).Leaf()) {
			t.Error("a handshake shows a certificate that was replaced")
		}
		if err := say(lasting); err != nil {
			t.Fatalf("the connection from before: %v", err)
		}
	}
}

// What is broken is not taken, and what was good stays.
func TestBrokenFiles(t *testing.T) {
	m := newMaker(t)
	good, trust := m.credential(t, serverURI, nil), certPEM(m.cert)
	s := newSide(t, good, trust, clientURI)
	own, peers := s.Own.(*mutual.Credential), s.Peers
	leaf, roots := own.Leaf(), peers.Roots()
	other := m.credential(t, serverURI, nil)
	for name, content := range map[string][]byte{
		"empty": nil, "cut": good[:len(good)-40], "without a key": trust, "too long": bytes.Repeat([]byte("\n"), 1<<20+1),
		"the key of another": slices.Concat(other[:bytes.Index(other, []byte("-----BEGIN CERT"))], good[bytes.Index(good, []byte("-----BEGIN CERT")):]),
	} {
		s.replace(s.own, content)
		if own.Leaf() != leaf || own.Err() == nil {
			t.Errorf("%s: a credential: %v", name, own.Err())
		}
	}
	for name, content := range map[string][]byte{
		"empty": nil, "cut": trust[:len(trust)-40], "a key in it": good, "one good, one cut": slices.Concat(trust, trust[:len(trust)-40]),
	} {
		s.replace(s.peers, content)
		if peers.Roots() != roots || peers.Err() == nil {
			t.Errorf("%s: a trust: %v", name, peers.Err())
		}
	}
	for _, path := range []string{s.own, s.peers} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if own.Leaf() != leaf || !errors.Is(own.Err(), os.ErrNotExist) || peers.Roots() != roots || !errors.Is(peers.Err(), os.ErrNotExist) {
		t.Errorf("without files: %v, %v", own.Err(), peers.Err())
	}
	s.replace(s.own, other)
	s.replace(s.peers, trust)
	if own.Leaf() == leaf || own.Err() != nil || peers.Err() != nil {
		t.Errorf("with good ones again: %v, %v", own.Err(), peers.Err())
	}
}
