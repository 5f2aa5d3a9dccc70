package cert_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// hostile is an authority that does not behave as it should: it speaks just enough of RFC 8555 to get where it does harm.
type hostile struct {
	*httptest.Server
	key *ecdsa.PrivateKey

	mu    sync.Mutex // guards the rest
	nonce int
	csr   *x509.CertificateRequest
	// identifier and challenge are what an authorization shows; a nil challenge is one that is valid at once.
	identifier, challenge map[string]any
	// asked is how often a challenge was accepted: the solver had presented it.
	asked int64
	// chain is what it issues for a request.
	chain func(*x509.CertificateRequest) []byte
}

func newHostile(t *testing.T) *hostile {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &hostile{key: key, identifier: map[string]any{"type": "dns", "value": "acme.test"}}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	return a
}

// settings ask it for a name.
func (a *hostile) settings(t *testing.T) config.ACME {
	return config.ACME{
		Domains: []string{"acme.test"}, Directory: a.URL + "/dir", StoragePath: filepath.Join(t.TempDir(), "a", "b", "acme"), Challenge: config.ChallengeALPN,
	}
}

func (a *hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.nonce++
	w.Header().Set("Replay-Nonce", fmt.Sprint("nonce", a.nonce))
	w.Header().Set("Location", a.URL+r.URL.Path+"/1")
	w.Header().Set("Content-Type", "application/json")
	order := map[string]any{
		"status": "pending", "identifiers": []any{map[string]string{"type": "dns", "value": "acme.test"}},
		"authorizations": []string{a.URL + "/authz"}, "finalize": a.URL + "/finalize", "certificate": a.URL + "/cert",
	}
	var answer any
	status := http.StatusOK
	switch r.URL.Path {
	case "/dir":
		answer = map[string]string{"newNonce": a.URL + "/nonce", "newAccount": a.URL + "/account", "newOrder": a.URL + "/order"}
	case "/account":
		status, answer = http.StatusCreated, map[string]any{"status": "valid"}
	case "/order":
		status, answer = http.StatusCreated, order
	case "/authz":
		answer = a.authorization()
	case "/challenge":
		a.asked++
		answer = a.challenge
	case "/finalize":
		a.csr = requested(r)
		order["status"] = "valid"
		answer = order
	case "/cert":
		w.Header().Set("Content-Type", "application/pem-certificate-chain")
		_, _ = w.Write(a.chain(a.csr))
		return
	default:
		return
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer)
}

func (a *hostile) authorization() map[string]any {
	status := "pending"
	c := a.challenge
	switch {
	case c == nil:
		status, c = "valid", map[string]any{"type": "tls-alpn-01", "token": "token", "status": "valid"}
	case a.asked > 0:
		status = "invalid"
	}
	return map[string]any{"status": status, "identifier": a.identifier, "challenges": []any{c}}
}

// requested is the request in the body of a call.
func requested(r *http.Request) *x509.CertificateRequest {
	var jws, body map[string]any
	_ = json.NewDecoder(r.Body).Decode(&jws)
	payload, _ := base64.RawURLEncoding.DecodeString(fmt.Sprint(jws["payload"]))
	_ = json.Unmarshal(payload, &body)
	der, _ := base64.RawURLEncoding.DecodeString(fmt.Sprint(body["csr"]))
	csr, _ := x509.ParseCertificateRequest(der)
	return csr
}

// issue signs a certificate for a public key.
func (a *hostile) issue(public any, serial int64, name string, from, to time.Duration) []byte {
	c := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{name}, NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(to)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, public, a.key)
	if err != nil {
		return []byte(err.Error())
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// change changes what it does.
func (a *hostile) change(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// What an authority sends as a challenge is answered only if it follows from the order: it becomes the name of a file or of
// a record, and its content.
func TestChallengesThatWereNotOrdered(t *testing.T) {
	for _, c := range []struct {
		name                 string
		kind, value          string
		token, authorization string
		answered             bool
		complained           string
	}{
		{name: "as ordered", kind: "dns", value: "acme.test", token: "token", answered: true},
		{name: "a path", kind: "dns", value: "../../../victim", token: "token", complained: "not ordered"},
		{name: "another name", kind: "dns", value: "other.test", token: "token", complained: "not ordered"},
		{name: "another case", kind: "dns", value: "ACME.test", token: "token", complained: "not ordered"},
		{name: "a name below", kind: "dns", value: "www.acme.test", token: "token", complained: "not ordered"},
		{name: "no name", kind: "dns", token: "token", complained: "not ordered"},
		{name: "another kind", kind: "ip", value: "acme.test", token: "token", complained: "not ordered"},
		{name: "a token that is a path", kind: "dns", value: "acme.test", token: "../token", complained: "token that is none"},
		{name: "another key", kind: "dns", value: "acme.test", token: "token", authorization: "token.other", complained: "key authorization"},
		{name: "no key", kind: "dns", value: "acme.test", token: "token", authorization: "<script>", complained: "key authorization"},
	} {
		for _, kind := range []config.Challenge{config.ChallengeHTTP, config.ChallengeALPN, config.ChallengeDNS} {
			t.Run(c.name+" "+string(kind), func(t *testing.T) {
				f := newHostile(t)
				f.identifier = map[string]any{"type": c.kind, "value": c.value}
				f.challenge = map[string]any{"type": kind, "url": f.URL + "/challenge", "status": "pending", "token": c.token}
				if c.authorization != "" {
					f.challenge["keyAuthorization"] = c.authorization
				}
				a := f.settings(t)
				a.Challenge = kind
				var records atomic.Int64
				provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					records.Add(1)
					w.WriteHeader(http.StatusForbidden)
				}))
				defer provider.Close()
				if kind == config.ChallengeDNS {
					a.DNS = &config.DNS{Provider: config.DNSCloudflare, ZoneID: "zone-1", Token: config.NewSecret("x"), Endpoint: provider.URL}
				}
				victim := filepath.Join(filepath.Dir(filepath.Dir(a.StoragePath)), "victim.json")
				if err := os.MkdirAll(filepath.Dir(victim), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
					t.Fatal(err)
				}
				i := newInstance(t, a, 0)
				i.source.Start()
				gatewaytest.Until(t, "the order fails", func() bool { return i.store.Stats().Refused > 0 })
				if !strings.Contains(i.log.String(), c.complained) {
					t.Errorf("the log does not say %q", c.complained)
				}
				asked := records.Load()
				f.change(func() { asked += f.asked })
				if asked > 0 != c.answered {
					t.Errorf("the challenge was answered %d times", asked)
				}
				if text, err := os.ReadFile(victim); err != nil || string(text) != "precious" {
					t.Errorf("a file outside of the storage is %q, %v", text, err)
				}
			})
		}
	}
}

// A certificate that cannot serve what was ordered is not stored: what is there stays in force, and a good one is taken
// when it comes.
func TestUnusableCertificates(t *testing.T) {
	const day = 24 * time.Hour
	f := newHostile(t)
	good := func(serial int64, to time.Duration) func(*x509.CertificateRequest) []byte {
		return func(r *x509.CertificateRequest) []byte {
			return f.issue(r.PublicKey, serial, "acme.test", -time.Minute, to)
		}
	}
	for _, c := range []struct {
		name, complained string
		chain            func(*x509.CertificateRequest) []byte
	}{
		{"no certificate", "holds no certificate", func(*x509.CertificateRequest) []byte { return []byte("this is none\n") }},
		{"a broken one", "certificate 1", func(*x509.CertificateRequest) []byte {
			return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("junk")})
		}},
		{"a broken one behind it", "certificate 2", func(r *x509.CertificateRequest) []byte {
			return append(good(7, day)(r), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("junk")})...)
		}},
		{"another key", "another key", func(*x509.CertificateRequest) []byte {
			return f.issue(f.key.Public(), 7, "acme.test", -time.Minute, day)
		}},
		{"another name", "not for acme.test", func(r *x509.CertificateRequest) []byte {
			return f.issue(r.PublicKey, 7, "other.test", -time.Minute, day)
		}},
		{"ended", "ended at", func(r *x509.CertificateRequest) []byte {
			return f.issue(r.PublicKey, 7, "acme.test", -time.Hour, -time.Minute)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := f.settings(t)
			serves := func(i *instance, serial int64) {
				t.Helper()
				gatewaytest.Until(t, fmt.Sprint("serial ", serial, " is served"), func() bool {
					leaf, _ := i.leaf(t, "acme.test", nil)
					return leaf.SerialNumber.Int64() == serial
				})
			}
			f.change(func() { f.chain = good(1, 3*time.Second) }) // to be renewed from two seconds on
			i := newInstance(t, a, 0)
			i.source.Start()
			serves(i, 1)
			f.change(func() { f.chain = c.chain })
			gatewaytest.Until(t, "the renewal fails", func() bool { return i.store.Stats().Refused > 0 })
			if !strings.Contains(i.log.String(), c.complained) {
				t.Errorf("the log does not say %q", c.complained)
			}
			serves(i, 1)
			i.stop(t)
			f.change(func() { f.chain = good(2, day) })
			i = newInstance(t, a, 0)
			serves(i, 1)
			i.source.Start()
			serves(i, 2)
		})
	}
}

// What is in storage and cannot be served is asked for anew, as if it was not there.
func TestUnusableStorage(t *testing.T) {
	f := newHostile(t)
	var serial int64
	f.chain = func(r *x509.CertificateRequest) []byte {
		serial++
		return f.issue(r.PublicKey, serial, "acme.test", -time.Minute, 24*time.Hour)
	}
	other := f.issue(f.key.Public(), 99, "acme.test", -time.Minute, time.Hour)
	for _, c := range []struct {
		name, extension string
		text            []byte
	}{
		{"no certificate", ".crt", []byte("junk")},
		{"the certificate of another key", ".crt", other},
		{"no key", ".key", []byte("junk")},
		{"an empty key", ".key", nil},
		{"no description", ".json", []byte("{")},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := f.settings(t)
			i := newInstance(t, a, 0)
			i.source.Start()
			gatewaytest.Until(t, "one is issued", func() bool { return i.store.Stats().Issued == 1 })
			i.stop(t)
			files, err := filepath.Glob(filepath.Join(a.StoragePath, "certificates", "*", "*", "*"+c.extension))
			if err != nil || len(files) != 1 {
				t.Fatalf("files %v, %v", files, err)
			}
			if err := os.WriteFile(files[0], c.text, 0o600); err != nil {
				t.Fatal(err)
			}
			i = newInstance(t, a, 0)
			i.source.Start()
			gatewaytest.Until(t, "one is issued again", func() bool {
				leaf, _ := i.leaf(t, "acme.test", nil)
				return i.store.Stats().Issued == 1 && leaf.Subject.CommonName != "not issued yet"
			})
		})
	}
}

// Answers without end are refused, of an authority and of the services for DNS.
func TestEndlessAnswers(t *testing.T) {
	const most = 16 << 20 // what the sockets hold comes on top
	for name, ask := range map[string]func(t *testing.T, url string) error{
		"authority": func(t *testing.T, url string) error {
			a := config.ACME{Domains: []string{"acme.test"}, Directory: url, StoragePath: t.TempDir(), Challenge: config.ChallengeALPN}
			i := newInstance(t, a, 0)
			i.source.Start()
			gatewaytest.Until(t, "the order fails", func() bool { return i.store.Stats().Refused > 0 })
			return errors.New(i.log.String())
		},
		"Cloudflare": func(t *testing.T, url string) error {
			return put(t, &config.DNS{Provider: config.DNSCloudflare, ZoneID: "z", Token: config.NewSecret("x"), Endpoint: url})
		},
		"Route 53": func(t *testing.T, url string) error {
			return put(t, &config.DNS{Provider: config.DNSRoute53, ZoneID: "Z1", Token: config.NewSecret("a:b"), Endpoint: url})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var sent atomic.Int64
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				for spaces := bytes.Repeat([]byte(" "), 1<<16); sent.Load() < 10*most; {
					n, err := w.Write(spaces)
					if sent.Add(int64(n)); err != nil {
						return
					}
				}
			}))
			defer s.Close()
			if err := ask(t, s.URL); err == nil || !strings.Contains(err.Error(), "too large") {
				t.Errorf("error %v", err)
			}
			s.CloseClientConnections()
			if got := sent.Load(); got > 4*most { // libraries try again a few times
				t.Errorf("%d bytes were taken", got)
			}
		})
	}
}

func put(t *testing.T, n *config.DNS) error {
	t.Helper()
	z, err := cert.ZoneOf(n)
	if err != nil {
		t.Fatal(err)
	}
	return z.Add(t.Context(), challengeName, "value")
}

// What storage has is taken if it is another certificate that is not older, whenever it ends.
func TestNewer(t *testing.T) {
	at := func(serial int64, from, to int) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(serial), NotBefore: time.Unix(int64(from), 0), NotAfter: time.Unix(int64(to), 0)}
	}
	for name, c := range map[string]struct {
		a, than *x509.Certificate
		want    bool
	}{
		"the first":              {at(1, 0, 9), nil, true},
		"the same":               {at(1, 0, 9), at(1, 0, 9), false},
		"later":                  {at(2, 1, 10), at(1, 0, 9), true},
		"later, ends sooner":     {at(2, 1, 5), at(1, 0, 9), true},
		"at the same time":       {at(2, 0, 9), at(1, 0, 9), true},
		"older":                  {at(2, 0, 9), at(1, 1, 9), false},
		"older, although longer": {at(2, 0, 10), at(1, 1, 9), false},
	} {
		if got := cert.Newer(c.a, c.than); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A certificate that ends before the one that it replaces is taken into service.
func TestShorterReplacement(t *testing.T) {
	f := newHostile(t)
	var serial int64
	f.chain = func(r *x509.CertificateRequest) []byte {
		serial++
		return f.issue(r.PublicKey, serial, "acme.test", -time.Minute, 24*time.Hour/time.Duration(serial))
	}
	a := f.settings(t)
	i := newInstance(t, a, 0)
	i.source.Start()
	first := i.other(t, nil)
	if err := os.RemoveAll(filepath.Join(a.StoragePath, "certificates")); err != nil { // another one is asked for
		t.Fatal(err)
	}
	if second := i.other(t, first); !second.NotAfter.Before(first.NotAfter) {
		t.Errorf("the first ends %v, the second %v", first.NotAfter, second.NotAfter)
	}
}

// other waits until a certificate is served that was issued, and is another one than old, which may be nil.
func (i *instance) other(t *testing.T, old *x509.Certificate) (leaf *x509.Certificate) {
	t.Helper()
	gatewaytest.Until(t, "another certificate", func() bool {
		leaf, _ = i.leaf(t, "acme.test", nil)
		return leaf.Subject.CommonName != "not issued yet" && (old == nil || leaf.SerialNumber.Cmp(old.SerialNumber) != 0)
	})
	return leaf
}

// Another authority, another place or other roots take effect, and what was issued before is served until then.
func TestChangeOfAuthority(t *testing.T) {
	for name, change := range map[string]func(a *config.ACME, f *hostile){
		"authority": func(a *config.ACME, f *hostile) { a.Directory = f.URL + "/dir" },
		"storage": func(a *config.ACME, f *hostile) {
			a.Directory, a.StoragePath = f.URL+"/dir", a.StoragePath+"2"
		},
	} {
		t.Run(name, func(t *testing.T) {
			old, next := newHostile(t), newHostile(t)
			old.chain = func(r *x509.CertificateRequest) []byte {
				return old.issue(r.PublicKey, 1, "acme.test", -time.Minute, time.Hour)
			}
			// This one's certificates begin earlier.
			next.chain = func(r *x509.CertificateRequest) []byte {
				return next.issue(r.PublicKey, 2, "acme.test", -time.Hour, time.Hour)
			}
			a := old.settings(t)
			i := newInstance(t, a, 0)
			i.source.Start()
			first := i.other(t, nil)
			change(&a, next)
			before := i.source
			i.source = load(t, i.store, cert.Options{ACME: &a})
			defer func() { _ = before.Close() }()
			if leaf := i.source.Certificates(); len(leaf) != 1 || !leaf[0].Equal(first) {
				t.Errorf("served is %v", leaf)
			}
			i.source.Start()
			gatewaytest.Until(t, "the new authority's is served", func() bool { return i.source.Certificates()[0].SerialNumber.Int64() == 2 })
		})
	}
}
