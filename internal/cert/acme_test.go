package cert_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mholt/acmez/v3/acme"

	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// instance is a store that serves an entrypoint.
type instance struct {
	store   *cert.Store
	source  *cert.Source
	address string
	log     *gatewaytest.Output
	set     *entrypoint.Set
}

// newInstance serves what an authority issues, at a port of loopback. Nothing is asked for before source.Start.
func newInstance(t *testing.T, a config.ACME, port int) *instance {
	t.Helper()
	i := &instance{log: &gatewaytest.Output{}}
	i.store = cert.NewStore(slog.New(slog.NewTextHandler(i.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	i.store.CheckRenewals(250 * time.Millisecond)
	i.source = load(t, i.store, cert.Options{ACME: &a})
	i.set = entrypoint.NewSet(entrypoint.Setup{})
	plan, err := i.set.Prepare(t.Context(), map[string]*entrypoint.Options{"web": {
		Address: fmt.Sprintf("127.0.0.1:%d", port), TLS: i.source.Config,
		HTTP: func(c conn.Conn, _ *drain.Tracker) { _, _ = c.Write([]byte("x")) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	plan.Commit()
	plan.Finish(0)
	i.address = i.set.Addr("web").String()
	t.Cleanup(func() {
		i.stop(t)
		if t.Failed() {
			t.Logf("log:\n%s", i.log)
		}
	})
	return i
}

// stop ends the instance, as a process would end.
func (i *instance) stop(t *testing.T) {
	t.Helper()
	if _, err := i.set.Shutdown(context.Background(), drain.Prompt); err != nil {
		t.Error(err)
	}
	_ = i.source.Close()
	i.store.Wait()
}

// leaf is what a client gets now, and whether it trusts that.
func (i *instance) leaf(t *testing.T, name string, roots *x509.CertPool) (*x509.Certificate, bool) {
	t.Helper()
	return gatewaytest.Served(t, i.address, name, roots)
}

// await waits until a client trusts what it gets, and until that is another one than old, which may be nil.
func (i *instance) await(t *testing.T, name string, roots *x509.CertPool, old *x509.Certificate) *x509.Certificate {
	t.Helper()
	var leaf *x509.Certificate
	gatewaytest.Until(t, "another certificate for "+name, func() bool {
		var ok bool
		leaf, ok = i.leaf(t, name, roots)
		return ok && (old == nil || leaf.SerialNumber.Cmp(old.SerialNumber) != 0)
	})
	return leaf
}

// settings ask an authority for names, by tls-alpn-01.
func settings(t *testing.T, p *gatewaytest.Pebble, names ...string) config.ACME {
	return config.ACME{
		Domains: names, Email: "operator@acme.test", Directory: p.Directory, CAFile: p.CAFile,
		StoragePath: filepath.Join(t.TempDir(), "acme"), Challenge: config.ChallengeALPN,
	}
}

// A certificate is renewed before it ends and served without a restart; when that fails, the old one goes on.
func TestRenewal(t *testing.T) {
	p := gatewaytest.NewPebble(t, gatewaytest.PebbleOptions{Validity: 8 * time.Second}).Start()
	i := newInstance(t, settings(t, p, "renewed.test"), p.TLSPort)
	i.source.Start()
	first := i.await(t, "renewed.test", p.Root(), nil)
	second := i.await(t, "renewed.test", p.Root(), first)
	if !second.NotBefore.Before(first.NotAfter) {
		t.Errorf("the first ended %v, the second began %v", first.NotAfter, second.NotBefore)
	}
	if !strings.Contains(p.Output(), "is a replacement of") {
		t.Error("the authority was not told what is replaced")
	}
	p.Stop()
	gatewaytest.Until(t, "a renewal fails", func() bool { return i.store.Stats().Refused > 0 })
	if leaf, _ := i.leaf(t, "renewed.test", nil); !strings.Contains(leaf.Issuer.CommonName, "Pebble") {
		t.Errorf("served is %v", leaf.Issuer)
	}
}

// What is in storage is served although it has ended, and renewed from that state (KF-TLS-02).
func TestRenewalOfAnExpiredCertificate(t *testing.T) {
	p := gatewaytest.NewPebble(t, gatewaytest.PebbleOptions{Validity: 3 * time.Second}).Start()
	a := settings(t, p, "expired.test")
	i := newInstance(t, a, p.TLSPort)
	i.source.Start()
	i.await(t, "expired.test", p.Root(), nil)
	i.stop(t)
	block, _ := pem.Decode(find(t, a.StoragePath, ".crt")) // by now it may be another one
	old, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	gatewaytest.Until(t, "it has ended", func() bool { return time.Now().After(old.NotAfter) })
	i = newInstance(t, a, p.TLSPort)
	if leaf, _ := i.leaf(t, "expired.test", nil); leaf.SerialNumber.Cmp(old.SerialNumber) != 0 {
		t.Errorf("served is %v", leaf.Subject)
	}
	i.source.Start()
	i.await(t, "expired.test", p.Root(), old)
}

// The authority's suggestion to renew is followed (RFC 9773), also with an account that did not order the certificate that
// is replaced.
func TestRenewalBySuggestion(t *testing.T) {
	p := gatewaytest.NewPebble(t, gatewaytest.PebbleOptions{}).Start()
	for name, email := range map[string]string{"suggested.test": "operator@acme.test", "moved.test": "other@acme.test"} {
		a := settings(t, p, name)
		i := newInstance(t, a, p.TLSPort)
		i.source.Start()
		old := i.await(t, name, p.Root(), nil)
		p.RenewNow(find(t, a.StoragePath, ".crt"))
		// The suggestion is asked for again when the authority said so, in hours. Have it asked for now.
		rewrite(t, a.StoragePath, func(meta map[string]any) {
			info := meta["issuer_data"].(map[string]any)["renewal_info"].(map[string]any)
			info["_retryAfter"] = time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
		})
		i.stop(t)
		a.Email = email
		i = newInstance(t, a, p.TLSPort)
		i.source.Start()
		i.await(t, name, p.Root(), old)
		i.stop(t)
	}
}

// find returns the content of the one file in storage with an extension.
func find(t *testing.T, dir, ext string) []byte {
	t.Helper()
	var found []byte
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, _ error) error {
		if filepath.Ext(path) == ext && strings.Contains(path, "certificates") {
			found, _ = os.ReadFile(path)
		}
		return nil
	})
	if found == nil {
		t.Fatalf("no %s in %s", ext, dir)
	}
	return found
}

func rewrite(t *testing.T, dir string, change func(map[string]any)) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if filepath.Ext(path) != ".json" || !strings.Contains(path, "certificates") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var meta map[string]any
		if err := json.Unmarshal(text, &meta); err != nil {
			return err
		}
		change(meta)
		text, err = json.Marshal(meta)
		if err != nil {
			return err
		}
		return os.WriteFile(path, text, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Several instances with one storage ask for one certificate, with one account, and answer for each other.
func TestSeveralInstances(t *testing.T) {
	p := gatewaytest.NewPebble(t, gatewaytest.PebbleOptions{}).Start()
	a := settings(t, p, "shared.test", "second.test")
	ports := append([]int{p.TLSPort}, gatewaytest.FreePorts(t, 2)...)
	var all []*instance
	for _, port := range ports {
		all = append(all, newInstance(t, a, port))
	}
	// The authority comes to the first one, which has asked for nothing.
	all[1].source.Start()
	all[2].source.Start()
	all[1].await(t, "shared.test", p.Root(), nil)
	all[0].source.Start()
	for _, name := range a.Domains {
		first := all[0].await(t, name, p.Root(), nil)
		for _, i := range all[1:] {
			if leaf := i.await(t, name, p.Root(), nil); leaf.SerialNumber.Cmp(first.SerialNumber) != 0 {
				t.Errorf("%s has two certificates", name)
			}
		}
	}
	if n := p.Orders(); n != 2 {
		t.Errorf("%d orders for two names\n%s", n, p.Output())
	}
	if n := strings.Count(p.Output(), "accounts in memory"); n != 1 {
		t.Errorf("%d accounts", n)
	}
}

// What an instance held that was killed does not keep the next one from asking: nobody refreshes its lock any more.
func TestLockOfAKilledInstance(t *testing.T) {
	p := gatewaytest.NewPebble(t, gatewaytest.PebbleOptions{}).Start()
	a := settings(t, p, "killed.test")
	i := newInstance(t, a, p.TLSPort)
	old := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	lock := filepath.Join(a.StoragePath, "locks", "issue_cert_killed.test.lock")
	if err := os.MkdirAll(filepath.Dir(lock), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(lock, fmt.Appendf(nil, `{"created":%q,"updated":%[1]q}`, old), 0o600); err != nil {
		t.Fatal(err)
	}
	i.source.Start()
	i.await(t, "killed.test", p.Root(), nil)
	if _, err := os.Stat(lock); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the lock is still there: %v", err)
	}
}

// Wildcards are proved by DNS, with a server that takes updates; the records are gone afterwards.
func TestWildcard(t *testing.T) {
	b := gatewaytest.NewBIND(t, "acme.test")
	p := gatewaytest.NewPebble(t, gatewaytest.PebbleOptions{DNS: b.Address}).Start()
	a := settings(t, p, "*.acme.test", "acme.test")
	a.Challenge = config.ChallengeDNS
	a.DNS = &config.DNS{
		Provider: config.DNSUpdate, ZoneID: "acme.test", Server: b.Address, KeyName: b.KeyName, KeyAlg: "hmac-sha256", Token: config.NewSecret(b.Secret),
	}
	i := newInstance(t, a, 0)
	i.source.Start()
	i.await(t, "any.acme.test", p.Root(), nil)
	i.await(t, "acme.test", p.Root(), nil)
	if values := lookup(t, b.Address, "_acme-challenge.acme.test"); len(values) != 0 {
		t.Errorf("records are left: %v", values)
	}
	if strings.Contains(i.log.String(), b.Secret) {
		t.Error("the log shows the key")
	}
}

// An authority that wants accounts to be bound to others gets them.
func TestAccountBinding(t *testing.T) {
	const key = "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W"
	p := gatewaytest.NewPebble(t, gatewaytest.PebbleOptions{EAB: map[string]string{"kid-1": key}}).Start()
	a := settings(t, p, "bound.test")
	a.EAB = &config.EAB{KeyID: "kid-1", HMACKey: config.NewSecret(key)}
	i := newInstance(t, a, p.TLSPort)
	i.source.Start()
	i.await(t, "bound.test", p.Root(), nil)
	if strings.Contains(i.log.String(), key) {
		t.Error("the log shows the key")
	}
	a = settings(t, p, "bound.test")
	other := newInstance(t, a, 0)
	other.source.Start()
	gatewaytest.Until(t, "an account without binding is refused", func() bool { return other.store.Stats().Refused == 1 })
}

// A source that was never started asks for nothing, and neither does one that is closed.
func TestNothingBeforeStart(t *testing.T) {
	p := gatewaytest.NewPebble(t, gatewaytest.PebbleOptions{}).Start()
	i := newInstance(t, settings(t, p, "acme.test"), p.TLSPort)
	if leaf, _ := i.leaf(t, "acme.test", nil); leaf.Subject.CommonName != "not issued yet" || len(leaf.DNSNames) > 0 {
		t.Errorf("served is %v for %v", leaf.Subject, leaf.DNSNames)
	}
	if end := i.source.Expires(); !end.IsZero() {
		t.Errorf("what is not there ends %v", end)
	}
	i.stop(t)
	if n := p.Orders(); n != 0 {
		t.Errorf("%d orders", n)
	}
}

// An authority that says no is asked less often than one that says nothing.
func TestBackoff(t *testing.T) {
	silent, refused := errors.New("connection refused"), fmt.Errorf("x: %w", acme.Problem{Status: http.StatusForbidden})
	broken := fmt.Errorf("x: %w", acme.Problem{Status: http.StatusInternalServerError})
	for _, c := range []struct {
		err      error
		failures int
		most     time.Duration
	}{
		{silent, 0, 10 * time.Second},
		{silent, 3, 80 * time.Second},
		{silent, 1000, 10 * time.Minute},
		{broken, 0, 10 * time.Second},
		{refused, 0, 5 * time.Minute},
		{refused, 2, 20 * time.Minute},
		{refused, 1000, 6 * time.Hour},
	} {
		for range 100 {
			if d := cert.Backoff(c.err, c.failures); d > c.most || d < c.most*4/5 {
				t.Errorf("%v after %d: %v, want about %v", c.err, c.failures, d, c.most)
			}
		}
	}
}

// Tokens become names of files: others are not looked for.
func TestChallengeTokens(t *testing.T) {
	p := newPlace(t)
	p.put(t, issue(t, 1))
	store := cert.NewStore(nil)
	a := config.ACME{Domains: []string{"acme.test"}, Directory: "https://127.0.0.1:1/", StoragePath: t.TempDir()}
	load(t, store, cert.Options{ACME: &a})
	secret := filepath.Join(a.StoragePath, "challenges", "outside.json")
	if err := os.MkdirAll(filepath.Join(filepath.Dir(secret), "http-01"), 0o700); err != nil {
		t.Fatal(err)
	}
	good, err := json.Marshal(map[string]any{
		"challenge": map[string]any{"type": "http-01", "token": "token", "keyAuthorization": "answer"}, "expires": time.Now().Add(time.Hour),
	})
	if err != nil {
		t.Fatal(err)
	}
	late := bytes.Replace(good, []byte(time.Now().Add(time.Hour).Format("2006")), []byte("2001"), 1)
	for name, text := range map[string][]byte{"outside.json": good, "http-01/token.json": good, "http-01/other.json": good, "http-01/late.json": late, "http-01/junk.json": []byte("{")} {
		if err := os.WriteFile(filepath.Join(a.StoragePath, "challenges", name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for token, want := range map[string]string{
		"token": "answer", "other": "", "late": "", "junk": "", "none": "", "": "", "../outside": "", "token.json": "", "tok/en": "", strings.Repeat("a", 129): "",
	} {
		if got, ok := store.Challenge(token); got != want || ok != (want != "") {
			t.Errorf("%q is answered %q", token, got)
		}
	}
}

// New content of the file with the authority's roots is taken up by the next Load.
func TestChangeOfRoots(t *testing.T) {
	p := gatewaytest.NewPebble(t, gatewaytest.PebbleOptions{}).Start()
	a := settings(t, p, "acme.test")
	good, err := os.ReadFile(a.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	a.CAFile = filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(a.CAFile, issue(t, 1).cert, 0o600); err != nil {
		t.Fatal(err)
	}
	i := newInstance(t, a, p.TLSPort)
	i.source.Start()
	gatewaytest.Until(t, "the authority is not trusted", func() bool { return i.store.Stats().Refused > 0 })
	if err := os.WriteFile(a.CAFile, good, 0o600); err != nil {
		t.Fatal(err)
	}
	next := load(t, i.store, cert.Options{ACME: &a})
	next.Start()
	gatewaytest.Until(t, "a certificate is issued", func() bool { return i.store.Stats().Issued == 1 })
}

// An authority that takes connections and says nothing does not hold up the end of the process.
func TestEndBesideAHangingAuthority(t *testing.T) {
	p := gatewaytest.NewPebble(t, gatewaytest.PebbleOptions{}).Start()
	a := settings(t, p, "one.test", "two.test", "three.test")
	i := newInstance(t, a, p.TLSPort)
	i.source.Start()
	for _, n := range a.Domains {
		i.await(t, n, p.Root(), nil)
	}
	i.stop(t)
	rewrite(t, a.StoragePath, func(meta map[string]any) {
		info := meta["issuer_data"].(map[string]any)["renewal_info"].(map[string]any)
		info["_retryAfter"] = time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)
	})
	p.Stop()
	l, err := net.Listen("tcp", strings.TrimSuffix(strings.TrimPrefix(p.Directory, "https://"), "/dir"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	i = newInstance(t, a, p.TLSPort)
	i.source.Start()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	began := time.Now()
	i.stop(t)
	if d := time.Since(began); d > 5*time.Second {
		t.Errorf("the end took %v", d)
	}
}
