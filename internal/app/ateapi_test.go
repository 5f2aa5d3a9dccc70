package app_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/mutual"
)

func ateapiOptions(dir string) app.AteapiOptions {
	return app.AteapiOptions{Listen: "127.0.0.1:0", DataDir: dir, Store: app.StoreSQLite, Log: slog.New(slog.DiscardHandler)}
}

// A start that fails leaves nothing that the next one would trip over.
func TestAteapiStartFails(t *testing.T) {
	dir := t.TempDir()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for name, change := range map[string]func(*app.AteapiOptions){
		"an address that is taken":  func(o *app.AteapiOptions) { o.Listen = taken.Addr().String() },
		"a store that is not known": func(o *app.AteapiOptions) { o.Store = "disk" },
		"a worker with a bad name":  func(o *app.AteapiOptions) { o.Workers = []string{"../w"} },
		"a socket in no directory":  func(o *app.AteapiOptions) { o.Minter = filepath.Join(dir, "none", "s") },
		"a store that is a directory": func(*app.AteapiOptions) {
			_ = os.Remove(filepath.Join(dir, "ateapi.db"))
			_ = os.Mkdir(filepath.Join(dir, "ateapi.db"), 0o700)
		},
	} {
		o := ateapiOptions(dir)
		change(&o)
		a, err := app.StartAteapi(t.Context(), o)
		if err == nil {
			t.Errorf("it starts with %s", name)
			_ = a.Close()
		} else if errors.Is(err, cert.ErrLocked) || strings.HasPrefix(name, "an address") && !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("with %s: %v", name, err)
		}
		if info, err := os.Stat(filepath.Join(dir, "ateapi.db")); err == nil && info.IsDir() {
			_ = os.Remove(filepath.Join(dir, "ateapi.db"))
		}
	}
	a, err := app.StartAteapi(t.Context(), ateapiOptions(dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := app.StartAteapi(t.Context(), ateapiOptions(dir)); !errors.Is(err, cert.ErrLocked) {
		t.Errorf("a second one in the directory: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := a.Wait(ctx); err != nil {
		t.Error(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
}

// Workers are told to reach the egress gateway by some host, for which its certificate has to be; origins have one by an authority
// that the gateway is given, and that signs nothing else.
func TestAteapiCertificates(t *testing.T) {
	for gateway, host := range map[string]string{
		"10.88.0.11:15443": "10.88.0.11", "[fd00::1]:15443": "fd00::1", "egress.test:8443": "egress.test", "": app.EgressName,
		app.EgressName + ":443": app.EgressName,
	} {
		o := ateapiOptions(t.TempDir())
		o.Store, o.EgressGateway, o.Origins = app.StoreMemory, gateway, []string{"api.demo.test", "pass.demo.test"}
		a, err := app.StartAteapi(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		leafOf := func(dir ...string) *x509.Certificate {
			t.Helper()
			c, err := mutual.OpenCredential(filepath.Join(append(append([]string{app.PKIDir(o.DataDir)}, dir...), cert.CredentialFile)...))
			if err != nil {
				t.Fatal(err)
			}
			return c.Leaf()
		}
		egress := leafOf("egress", "servicedns.podcert.ate.dev")
		for _, name := range []string{host, app.EgressName, "localhost"} {
			if err := egress.VerifyHostname(name); err != nil {
				t.Errorf("with %q: %v", gateway, err)
			}
		}
		trust, err := mutual.OpenTrust(filepath.Join(app.ComponentDir(o.DataDir, "egress"), "origins", cert.TrustFile))
		if err != nil {
			t.Fatal(err)
		}
		origin := leafOf(app.OriginsMount)
		for _, name := range o.Origins {
			if _, err := origin.Verify(x509.VerifyOptions{DNSName: name, Roots: trust.Roots()}); err != nil {
				t.Error(err)
			}
		}
		if _, err := egress.Verify(x509.VerifyOptions{DNSName: app.EgressName, Roots: trust.Roots()}); err == nil {
			t.Error("the authority of origins signs for the gateway")
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The egress gateway mints over the socket, without ever having the authority's key.
func TestAteapiMints(t *testing.T) {
	o := ateapiOptions(t.TempDir())
	o.Store, o.Minter, o.Workers = app.StoreMemory, filepath.Join(o.DataDir, "minter.sock"), []string{"w1"}
	a, err := app.StartAteapi(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Close() }()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	m := cert.NewSocketMinter(o.Minter)
	defer func() { _ = m.Close() }()
	chain, err := m.Mint(t.Context(), csr, "api.example.com", netip.Addr{})
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		t.Fatal(err)
	}
	trust, err := mutual.OpenTrust(filepath.Join(app.ComponentDir(o.DataDir, "worker-w1"), "egress-mitm.ate.dev", cert.TrustFile))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: "api.example.com", Roots: trust.Roots()}); err != nil {
		t.Error(err)
	}
	for _, component := range []string{"egress", "router", "admin", "worker-w1"} { // keys of authorities are below ca alone
		_ = filepath.WalkDir(app.ComponentDir(o.DataDir, component), func(path string, _ os.DirEntry, _ error) error {
			if text, err := os.ReadFile(path); err == nil && strings.Contains(string(text), "State: active") {
				t.Errorf("%s has an authority's key", path)
			}
			return nil
		})
	}
}
