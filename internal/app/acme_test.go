package app_test

import (
	"crypto/x509"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// acmeSite is a site with a clear-text entrypoint web and an entrypoint tls, both where the authority comes to.
func acmeSite(t *testing.T, p *gatewaytest.Pebble, storage, more string) site {
	b := gatewaytest.NewBackend(t, "one")
	return site{
		entrypoints: fmt.Sprintf(`entrypoints "web" { address = "127.0.0.1:%d" }
entrypoints "tls" {
  address = "127.0.0.1:%d"
  tls {
    acme               = true
    acme_email         = "operator@acme.test"
    acme_directory_url = %q
    acme_ca_file       = %q
    acme_storage_path  = %q
    %s
  }
}`, p.HTTPPort, p.TLSPort, p.Directory, p.CAFile, storage, more), backends: []string{b.URL}, rule: "Host(`acme.test`)",
	}
}

// trusted waits until clients get a certificate that they trust.
func trusted(t *testing.T, address, name string, roots *x509.CertPool) *x509.Certificate {
	t.Helper()
	var leaf *x509.Certificate
	gatewaytest.Until(t, "a certificate for "+name, func() (ok bool) {
		leaf, ok = gatewaytest.Served(t, address, name, roots)
		return ok
	})
	return leaf
}

// TestACME: certificates come by both challenges that the entrypoints answer, although a router takes every path (KF-TLS-01).
// After a restart nothing is asked for again.
func TestACME(t *testing.T) {
	for _, challenge := range []string{"", "http-01", "tls-alpn-01"} {
		t.Run("challenge "+challenge, func(t *testing.T) {
			t.Parallel()
			p := gatewaytest.NewPebble(t, gatewaytest.PebbleOptions{}).Start()
			storage := filepath.Join(t.TempDir(), "acme")
			more := ""
			if challenge != "" {
				more = fmt.Sprintf("acme_challenge = %q", challenge)
			}
			s := acmeSite(t, p, storage, more)
			s.rule, s.middlewares = "PathPrefix(`/`) && !Host(`other.test`) || Host(`acme.test`) || Host(`Second.test`)", `"never"`
			s.extra = `middlewares "never" { type = "rate-limit", rate = 1, burst = 0 }` + "\n" + management
			g := gatewaytest.Start(t, s.String())
			leaf := trusted(t, g.Addr("tls"), "acme.test", p.Root())
			trusted(t, g.Addr("tls"), "second.test", p.Root())
			if other, ok := gatewaytest.Served(t, g.Addr("tls"), "other.test", p.Root()); ok || slices.Contains(other.DNSNames, "other.test") {
				t.Error("a name that the rule excludes has a certificate")
			}
			if resp, _ := gatewaytest.Dial(t, g.Addr("web")).Get("/.well-known/acme-challenge/nobody-waits-for-this"); resp.StatusCode != http.StatusTooManyRequests {
				t.Errorf("an unknown token is answered %s", resp.Status)
			}
			_, text := ask(t, g.Addr("management"), "/api/gateway/metrics")
			if n := gatewaytest.Metric(text, `gateway_tls_certificate_renewals_total{result="success"}`); n != 2 {
				t.Errorf("%v certificates issued", n)
			}
			if end := gatewaytest.Metric(text, `gateway_tls_certificate_expiry_timestamp_seconds{entrypoint="tls"}`); end < float64(leaf.NotAfter.Unix())-10 || end > float64(leaf.NotAfter.Unix()) {
				t.Errorf("expiry %v, want about %d", end, leaf.NotAfter.Unix())
			}
			g.Stop()
			private(t, storage)

			orders := p.Orders()
			g = gatewaytest.Start(t, s.String())
			if again, ok := gatewaytest.Served(t, g.Addr("tls"), "acme.test", p.Root()); !ok || again.SerialNumber.Cmp(leaf.SerialNumber) != 0 {
				t.Errorf("not served at once after a restart: %v", again.Subject)
			}
			g.Apply(s.String() + "\n# changed")
			if again, ok := gatewaytest.Served(t, g.Addr("tls"), "acme.test", p.Root()); !ok || again.SerialNumber.Cmp(leaf.SerialNumber) != 0 {
				t.Errorf("not served after a reload: %v", again.Subject)
			}
			if n := p.Orders(); n != orders {
				t.Errorf("%d orders more after a restart", n-orders)
			}
		})
	}
}

// private checks that nobody else can read what is stored.
func private(t *testing.T, dir string) {
	t.Helper()
	keys := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if want := map[bool]fs.FileMode{true: 0o700, false: 0o600}[d.IsDir()]; info.Mode().Perm() != want {
			t.Errorf("%s has mode %v", path, info.Mode().Perm())
		}
		if text, _ := os.ReadFile(path); strings.Contains(string(text), "PRIVATE KEY") {
			keys++
		}
		return nil
	})
	if err != nil || keys < 2 {
		t.Errorf("%d keys are stored, %v", keys, err)
	}
}

// TestAuthorityOutage: without an authority everything is served, with a certificate that tells what is missing; when the
// authority comes, so does the certificate. What was issued before is served whatever becomes of it.
func TestAuthorityOutage(t *testing.T) {
	t.Parallel()
	p := gatewaytest.NewPebble(t, gatewaytest.PebbleOptions{})
	storage := filepath.Join(t.TempDir(), "acme")
	s := acmeSite(t, p, storage, "")
	g := gatewaytest.Start(t, s.String())
	client := httpClient(t, func(p *http.Protocols) { p.SetHTTP2(true) })
	get := func() {
		t.Helper()
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+g.Addr("tls")+"/", nil)
		req.Host = "acme.test"
		resp, err := client.Do(req)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%v %v", resp, err)
		}
		_ = resp.Body.Close()
	}
	get()
	if leaf, _ := gatewaytest.Served(t, g.Addr("tls"), "acme.test", nil); leaf.Subject.CommonName != "not issued yet" {
		t.Errorf("served as %v", leaf.Subject)
	}
	gatewaytest.Until(t, "the failure is told", func() bool { return strings.Contains(g.Process.String(), "no new certificate") })
	if text := g.Process.String(); !strings.Contains(text, "none was issued yet") {
		t.Errorf("what was never issued is told to expire: %s", text)
	}
	get()
	began := time.Now()
	p.Start()
	leaf := trusted(t, g.Addr("tls"), "acme.test", p.Root())
	t.Logf("issued %s after the authority came", time.Since(began).Round(time.Millisecond))
	get()

	// An authority that has forgotten everything, as after a reinstallation, or is not there: what is stored is served.
	root := p.Root()
	p.Stop()
	g.Stop()
	g = gatewaytest.Start(t, s.String())
	if again, ok := gatewaytest.Served(t, g.Addr("tls"), "acme.test", root); !ok || again.SerialNumber.Cmp(leaf.SerialNumber) != 0 {
		t.Errorf("not served without the authority: %v", again.Subject)
	}
	// A new name, asked for with an account that the authority does not know any more.
	p.Start()
	s.rule = "Host(`acme.test`) || Host(`second.test`)"
	g.Apply(s.String())
	trusted(t, g.Addr("tls"), "second.test", p.Root())
	if again, ok := gatewaytest.Served(t, g.Addr("tls"), "acme.test", root); !ok || again.SerialNumber.Cmp(leaf.SerialNumber) != 0 {
		t.Errorf("the old certificate is gone: %v", again.Subject)
	}
}

// There is no end to show of a certificate that is not there yet.
func TestExpiryBeforeACertificate(t *testing.T) {
	b := gatewaytest.NewBackend(t, "one")
	g := gatewaytest.Start(t, site{
		entrypoints: fmt.Sprintf(`entrypoints "web" { address = "127.0.0.1:0" }
entrypoints "tls" {
  address = "127.0.0.1:0"
  tls {
    acme               = true
    acme_directory_url = "https://127.0.0.1:1/dir"
    acme_storage_path  = %q
  }
}`, filepath.Join(t.TempDir(), "acme")), backends: []string{b.URL}, rule: "Host(`acme.test`)", extra: management,
	}.String())
	_, text := ask(t, g.Addr("management"), "/api/gateway/metrics")
	if !strings.Contains(text, "gateway_tls_certificate_renewals_total") || strings.Contains(text, `expiry_timestamp_seconds{entrypoint="tls"}`) {
		t.Errorf("metrics:\n%s", text)
	}
}
