package cert_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/conn"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := authority{key: key, cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// sign makes a certificate from a template, with a key of its own.
func (a authority) sign(t *testing.T, key crypto.Signer, c x509.Certificate) tls.Certificate {
	t.Helper()
	if c.SerialNumber == nil {
		c.SerialNumber = big.NewInt(time.Now().UnixNano())
	}
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	der, err := x509.CreateCertificate(rand.Reader, &c, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func newKey(t *testing.T, old bool) crypto.Signer {
	t.Helper()
	var key crypto.Signer
	var err error
	if old {
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	} else {
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// write puts a certificate into files of their own.
func write(t *testing.T, c tls.Certificate) cert.Files {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	p := newPlace(t)
	p.put(t, material{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
	})
	return p.Files
}

// Each client gets the certificate for the name that it asks for, of the kind that it can use.
func TestSeveralCertificates(t *testing.T) {
	ca := newAuthority(t, "ca")
	var files []cert.Files
	for i, c := range []struct {
		old   bool
		names []string
	}{
		1: {true, []string{"first.test", "www.first.test"}},
		2: {false, []string{"first.test"}},
		3: {true, []string{"old.test"}},
		4: {false, []string{"*.wild.test", "Upper.test"}},
		5: {false, []string{"a.wild.test"}},
	} {
		if i > 0 {
			files = append(files, write(t, ca.sign(t, newKey(t, c.old), x509.Certificate{SerialNumber: big.NewInt(int64(i)), DNSNames: c.names})))
		}
	}
	onlyRSA := []uint16{tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256}
	for name, c := range map[string]struct {
		sni    string
		suites []uint16 // of TLS 1.2; nil: 1.3
		serial int64
		strict bool // answered by a strict entrypoint too
	}{
		"first name, elliptic curve":        {"first.test", nil, 2, true},
		"first name, old client":            {"first.test", onlyRSA, 1, true},
		"a name that only one has":          {"www.first.test", nil, 1, true},
		"RSA alone":                         {"old.test", nil, 3, true},
		"exact before wildcard":             {"a.wild.test", nil, 5, true},
		"wildcard":                          {"b.wild.test", nil, 4, true},
		"upper case in both":                {"uPPer.test", nil, 4, true},
		"wildcard stands for one label":     {"a.b.wild.test", nil, 2, false},
		"wildcard does not stand for none":  {"wild.test", nil, 2, false},
		"unknown name":                      {"other.test", nil, 2, false},
		"unknown name, old client":          {"other.test", onlyRSA, 1, false},
		"no name":                           {"", nil, 2, false},
		"no name, old client":               {"", onlyRSA, 1, false},
		"an address is not sent as a name":  {"127.0.0.1", nil, 2, false},
		"a wildcard is no name to ask for":  {"*.wild.test", nil, 4, true},
		"a name that ends like the servers": {"xfirst.test", nil, 2, false},
	} {
		for _, strict := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", strict"}[strict], func(t *testing.T) {
				src := load(t, cert.NewStore(nil), cert.Options{Files: files, StrictSNI: strict})
				client := &tls.Config{InsecureSkipVerify: true, ServerName: c.sni, CipherSuites: c.suites}
				if c.suites != nil {
					client.MaxVersion = tls.VersionTLS12
				}
				state, err := handshake(t, src.Config(), client)
				if strict && !c.strict {
					var alert tls.AlertError
					if !errors.As(err, &alert) && (err == nil || err.Error() != "remote error: tls: unrecognized name") {
						t.Errorf("a strict entrypoint answers %v", err)
					}
					return
				}
				if err != nil || state.PeerCertificates[0].SerialNumber.Int64() != c.serial {
					t.Errorf("not certificate %d: %v %v", c.serial, err, state.PeerCertificates)
				}
			})
		}
	}
}

// A session that began under one name is not resumed under one that a strict entrypoint does not know.
func TestStrictSNIOfResumedSessions(t *testing.T) {
	ca := newAuthority(t, "ca")
	files := write(t, ca.sign(t, newKey(t, false), x509.Certificate{DNSNames: []string{"here.test"}}))
	src := load(t, cert.NewStore(nil), cert.Options{Files: []cert.Files{files}, StrictSNI: true})
	client := &tls.Config{InsecureSkipVerify: true, ServerName: "here.test", ClientSessionCache: sameSession{tls.NewLRUClientSessionCache(1)}}
	for _, resumed := range []bool{false, true} {
		if state, err := handshake(t, src.Config(), client); err != nil || state.DidResume != resumed {
			t.Fatalf("resumed %v, %v", state.DidResume, err)
		}
	}
	client.ServerName = "there.test"
	if state, err := handshake(t, src.Config(), client); err == nil {
		t.Errorf("served; resumed = %v", state.DidResume)
	}
}

// sameSession offers one session to every server.
type sameSession struct{ tls.ClientSessionCache }

func (s sameSession) Get(string) (*tls.ClientSessionState, bool) {
	return s.ClientSessionCache.Get("one")
}
func (s sameSession) Put(_ string, c *tls.ClientSessionState) { s.ClientSessionCache.Put("one", c) }

// clientFiles is a file of client authorities.
func clientFiles(t *testing.T, all ...authority) string {
	t.Helper()
	var text []byte
	for _, a := range all {
		text = append(text, a.pem()...)
	}
	name := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestClientAuthentication(t *testing.T) {
	ca, other := newAuthority(t, "clients"), newAuthority(t, "others")
	p := newPlace(t)
	p.put(t, issue(t, 1))
	id, _ := url.Parse("spiffe://test/agent")
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	good := x509.Certificate{URIs: []*url.URL{id}, DNSNames: []string{"agent.test"}, ExtKeyUsage: usage}
	cases := map[string]struct {
		cert             *tls.Certificate
		request, require bool
		identity         string
	}{
		"none":        {nil, true, false, ""},
		"URI":         {ptr(ca.sign(t, newKey(t, false), good)), true, true, "spiffe://test/agent"},
		"DNS name":    {ptr(ca.sign(t, newKey(t, true), x509.Certificate{DNSNames: []string{"agent.test"}, ExtKeyUsage: usage})), true, true, "agent.test"},
		"mail":        {ptr(ca.sign(t, newKey(t, false), x509.Certificate{EmailAddresses: []string{"a@b.test"}, ExtKeyUsage: usage})), true, true, "a@b.test"},
		"subject":     {ptr(ca.sign(t, newKey(t, false), x509.Certificate{Subject: pkix.Name{CommonName: "agent", Organization: []string{"o"}}, ExtKeyUsage: usage})), true, true, "CN=agent,O=o"},
		"other CA":    {ptr(other.sign(t, newKey(t, false), good)), false, false, ""},
		"expired":     {ptr(ca.sign(t, newKey(t, false), x509.Certificate{NotAfter: time.Now().Add(-time.Minute), ExtKeyUsage: usage})), false, false, ""},
		"server's":    {ptr(ca.sign(t, newKey(t, false), x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})), false, false, ""},
		"self-signed": {ptr(keyPair(t, issue(t, 3))), false, false, ""},
	}
	for name, c := range cases {
		for _, policy := range []cert.ClientAuth{cert.NoClientAuth, cert.RequestClientCert, cert.RequireClientCert} {
			for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
				t.Run(name, func(t *testing.T) {
					o := p.options()
					if o.ClientAuth = policy; policy != cert.NoClientAuth {
						o.ClientCAFile = clientFiles(t, ca)
					}
					server := load(t, cert.NewStore(nil), o).Config().Clone()
					seen := make(chan string, 1)
					verify := server.VerifyConnection
					server.VerifyConnection = func(s tls.ConnectionState) error {
						seen <- conn.PeerIdentity(&s)
						if verify != nil {
							return verify(s)
						}
						return nil
					}
					client := anyServer()
					client.MaxVersion = version
					// Shown whatever authorities the server names.
					client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
						if c.cert == nil {
							return &tls.Certificate{}, nil
						}
						return c.cert, nil
					}
					_, err := handshake(t, server, client)
					want, identity := [...]bool{true, c.request, c.require}[policy], c.identity
					if policy == cert.NoClientAuth {
						identity = ""
					}
					if (err == nil) != want {
						t.Fatalf("policy %d: %v", policy, err)
					}
					if err == nil {
						if got := <-seen; got != identity {
							t.Errorf("policy %d: identity %q, want %q", policy, got, identity)
						}
					}
				})
			}
		}
	}
}

func ptr[T any](v T) *T { return &v }

func keyPair(t *testing.T, m material) tls.Certificate {
	t.Helper()
	c, err := tls.X509KeyPair(m.cert, m.key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A session is not resumed once the policy or the authorities have changed, and its client is judged by those of now.
func TestClientsOfResumedSessions(t *testing.T) {
	ca, other := newAuthority(t, "clients"), newAuthority(t, "others")
	p := newPlace(t)
	p.put(t, issue(t, 1))
	mine := ca.sign(t, newKey(t, false), x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		store := cert.NewStore(nil)
		client := anyServer()
		client.MaxVersion, client.ClientSessionCache = version, tls.NewLRUClientSessionCache(1)
		client.Certificates = []tls.Certificate{mine}
		o := p.options()
		o.ClientAuth, o.ClientCAFile = cert.RequestClientCert, clientFiles(t, ca)
		requesting := load(t, store, o)
		o.ClientAuth = cert.RequireClientCert
		requiring := load(t, store, o)
		shake := func(s *cert.Source, resumed bool) {
			t.Helper()
			if state, err := handshake(t, s.Config(), client); err != nil || state.DidResume != resumed {
				t.Errorf("version %x: resumed = %v, %v", version, state.DidResume, err)
			}
		}
		shake(requesting, false)
		shake(requesting, true)
		shake(requiring, false) // another policy
		shake(requiring, true)
		both := append(ca.pem(), other.pem()...)
		if err := os.WriteFile(o.ClientCAFile, both, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := store.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		shake(requiring, false) // other authorities
		shake(requiring, true)
		for text, broken := range map[string]bool{"": true, string(other.pem()): false} {
			if err := os.WriteFile(o.ClientCAFile, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := store.Reload(t.Context()); (err != nil) != broken {
				t.Errorf("broken %v: %v", broken, err)
			}
			if _, err := handshake(t, requiring.Config(), client); (err == nil) != broken {
				t.Errorf("broken %v: handshake %v", broken, err)
			}
			if err := os.WriteFile(o.ClientCAFile, both, 0o600); err != nil {
				t.Fatal(err)
			}
			_ = store.Reload(t.Context())
		}
	}
}

// What a ticket brings along is verified again: without that, keys that are the same would be enough.
func TestResumedClientsAreVerified(t *testing.T) {
	ca, other := newAuthority(t, "clients"), newAuthority(t, "others")
	p := newPlace(t)
	p.put(t, issue(t, 1))
	o := p.options()
	o.ClientAuth, o.ClientCAFile = cert.RequireClientCert, clientFiles(t, ca)
	store := cert.NewStore(nil)
	verify := load(t, store, o).Config().VerifyConnection
	o.ClientCAFile = clientFiles(t, other)
	verifyOther := load(t, store, o).Config().VerifyConnection
	leaf, err := x509.ParseCertificate(ca.sign(t, newKey(t, false), x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}).Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	expired, err := x509.ParseCertificate(ca.sign(t, newKey(t, false), x509.Certificate{NotAfter: time.Now().Add(-time.Minute)}).Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	session := func(c *x509.Certificate) tls.ConnectionState {
		return tls.ConnectionState{DidResume: true, PeerCertificates: []*x509.Certificate{c}, VerifiedChains: [][]*x509.Certificate{{c, ca.cert}}}
	}
	for name, c := range map[string]struct {
		err  error
		good bool
	}{
		"good":                 {verify(session(leaf)), true},
		"expired since":        {verify(session(expired)), false},
		"authority taken away": {verifyOther(session(leaf)), false},
		"none":                 {verify(tls.ConnectionState{DidResume: true}), false},
		"not verified":         {verifyOther(tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}), false},
	} {
		if (c.err == nil) != c.good {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	p := newPlace(t)
	p.put(t, issue(t, 1))
	for name, change := range map[string]func(*cert.Options){
		"nothing to serve":       func(o *cert.Options) { o.Files = nil },
		"policy without a file":  func(o *cert.Options) { o.ClientAuth = cert.RequireClientCert },
		"file without a policy":  func(o *cert.Options) { o.ClientCAFile = p.CertFile },
		"a file that is missing": func(o *cert.Options) { o.ClientAuth, o.ClientCAFile = cert.RequireClientCert, p.CertFile+"x" },
		"a file without any":     func(o *cert.Options) { o.ClientAuth, o.ClientCAFile = cert.RequireClientCert, p.KeyFile },
	} {
		o := p.options()
		change(&o)
		store := cert.NewStore(nil)
		if _, err := store.Load(o); err == nil {
			t.Errorf("%s: no error", name)
		}
		if n := len(store.Statuses()); n != 0 {
			t.Errorf("%s: %d pairs are held", name, n)
		}
	}
}

// The counters tell what became of changed files.
func TestStats(t *testing.T) {
	p := newPlace(t)
	p.put(t, issue(t, 1))
	store := cert.NewStore(nil)
	load(t, store, p.options())
	p.put(t, issue(t, 2))
	_ = store.Reload(t.Context())
	p.put(t, material{nil, nil})
	_, _ = store.Reload(t.Context()), store.Reload(t.Context())
	if got, want := store.Stats(), (cert.Stats{Reloaded: 1, Broken: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
