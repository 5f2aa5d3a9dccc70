package cert_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

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
