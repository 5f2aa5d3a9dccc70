package config_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
)

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// pair writes a self-signed certificate and its key.
func pair(t *testing.T, dir, name string, from, to time.Time) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	writePEM(t, cert, "CERTIFICATE", der)
	writePEM(t, key, "PRIVATE KEY", keyDER)
	return cert, key
}

func writePEM(t *testing.T, path, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCheckFiles(t *testing.T) {
	dir := t.TempDir()
	good, goodKey := pair(t, dir, "good", now.Add(-time.Hour), now.Add(time.Hour))
	_, otherKey := pair(t, dir, "other", now.Add(-time.Hour), now.Add(time.Hour))
	old, oldKey := pair(t, dir, "old", now.Add(-2*time.Hour), now.Add(-time.Hour))
	soon, soonKey := pair(t, dir, "soon", now.Add(time.Hour), now.Add(2*time.Hour))
	broken := filepath.Join(dir, "broken.pem")
	writePEM(t, broken, "CERTIFICATE", []byte(canary+"not der"))
	brokenKey := filepath.Join(dir, "broken.key")
	writePEM(t, brokenKey, "PRIVATE KEY", []byte(canary+"not der"))
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte(canary+"no PEM at all"), 0o600); err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(dir, "none")
	encrypted := filepath.Join(dir, "encrypted.key")
	writePEM(t, encrypted, "ENCRYPTED PRIVATE KEY", []byte("0"))
	older := filepath.Join(dir, "older.key")
	if err := os.WriteFile(older, []byte("-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nMDA=\n-----END EC PRIVATE KEY-----\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "good.der")
	pemText, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(pemText)
	if err := os.WriteFile(binary, block.Bytes, 0o600); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct {
		name, cert, key string
		want            []string // place, code and a piece of each message
	}{
		{"good", good, goodKey, nil},
		{"no certificate file", none, goodKey, []string{"cert config.file does not exist"}},
		{"no key file", good, none, []string{"key config.file does not exist"}},
		{"neither", none, none, []string{"cert config.file cert_file", "key config.file key_file"}},
		{"a directory", dir, goodKey, []string{"cert config.file not a regular file"}},
		{"wrong key", good, otherKey, []string{"key config.file is not the key"}},
		{"no PEM", text, text, []string{"cert config.file no certificate", "key config.file no private key"}},
		{"key in the place of the certificate", goodKey, good, []string{"cert config.file no certificate", "key config.file no private key"}},
		{"broken certificate", broken, goodKey, []string{"cert config.file certificate 1"}},
		{"broken key", good, brokenKey, []string{"key config.file cannot be parsed"}},
		{"encrypted key", good, encrypted, []string{"key config.file is encrypted"}},
		{"encrypted key of older form", good, older, []string{"key config.file is encrypted"}},
		{"binary certificate", binary, goodKey, []string{"cert config.file no certificate"}},
		{"expired", old, oldKey, []string{"cert config.warn.certificate_expired expired on 2026-11-30"}},
		{"not yet valid", soon, soonKey, []string{"cert config.warn.certificate_expired not valid before"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := config.Loader{LookupEnv: func(name string) (string, bool) {
				v, ok := map[string]string{"C": c.cert, "K": c.key}[name]
				return v, ok
			}}
			cfg, diags := l.Load([]config.Source{src("f.acl", `entrypoints "e" { address = ":1"; tls { cert_file = env("C"); key_file = env("K") } }`)})
			if cfg == nil {
				t.Fatal(diags)
			}
			found := l.CheckFiles(cfg, now)
			var got []string
			for _, d := range found {
				got = append(got, fmt.Sprintf("%d:%d %s %s", d.Span.Start.Line, d.Span.Start.Col, d.Code, d.Message))
				if strings.Contains(d.Message, "encrypted") && !strings.Contains(d.Hint, "openssl pkey") || c.cert == binary && !strings.Contains(d.Hint, "DER") {
					t.Errorf("does not say what to do: %s", d.Hint)
				}
				if strings.Contains(d.Message, canary) {
					t.Errorf("shows the content of a file: %s", d.Message)
				}
			}
			if len(got) != len(c.want) {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			for i, want := range c.want {
				place, rest, _ := strings.Cut(want, " ")
				code, piece, _ := strings.Cut(rest, " ")
				col := map[string]string{"cert": "1:53", "key": "1:74"}[place]
				if !strings.HasPrefix(got[i], col+" "+code+" ") || !strings.Contains(got[i], piece) {
					t.Errorf("got %q, want %s %s … %s", got[i], col, code, piece)
				}
			}
		})
	}
}

func TestCheckFilesOfOthers(t *testing.T) {
	dir := t.TempDir()
	good, goodKey := pair(t, dir, "good", now.Add(-time.Hour), now.Add(time.Hour))
	text := fmt.Sprintf(`services "s" {
  load_balancer { servers { url = "https://a" } }
  transport { ca_file = %[1]q }
}
management {
  enabled = true
  tls { cert_file = %[2]q; key_file = %[3]q; client_ca_file = %[1]q }
}
`, filepath.Join(dir, "none"), good, goodKey)
	token := ""
	l := config.Loader{LookupEnv: func(string) (string, bool) { return token, token != "" }}
	cfg, diags := l.Load([]config.Source{src("in.acl", text)})
	if cfg == nil {
		t.Fatal(diags)
	}
	want := `3:25: error config.file: ca_file of services "s": the file does not exist
5:1: error config.env: management needs the environment variable A3S_GATEWAY_ADMIN_TOKEN, which is not set
    set it to the bearer token, or write auth_token_env = "" to serve without one
7:`
	if got := report(l.CheckFiles(cfg, now)); !strings.HasPrefix(got, want) || !strings.Contains(got, "client_ca_file of management: the file does not exist") {
		t.Errorf("got %s", got)
	}
	token = "x"
	if got := report(l.CheckFiles(cfg, now)); strings.Contains(got, "A3S_GATEWAY_ADMIN_TOKEN") {
		t.Errorf("the token is set: %s", got)
	}
}

// A key and its chain in one file are one file to the operator: it is reported once, by the key that names it.
func TestCheckFilesOfActors(t *testing.T) {
	dir := t.TempDir()
	cert, key := pair(t, dir, "good", now.Add(-time.Hour), now.Add(time.Hour))
	old, oldKey := pair(t, dir, "old", now.Add(-2*time.Hour), now.Add(-time.Hour))
	join := func(name string, files ...string) string {
		var all []byte
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, b...)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, all, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const what = `4:50: error config.file: credential_file of control of services "s"`
	for file, want := range map[string]string{
		join("whole", key, cert):   "",
		join("over", oldKey, old):  "4:50: warning config.warn.certificate_expired: the certificate of control of services \"s\" expired on 2026-11-30\n",
		filepath.Join(dir, "none"): what + ": the file does not exist\n",
		join("chain", cert):        what + " holds no private key in PEM form\n",
		join("key", key):           what + " holds no certificate in PEM form\n",
		join("mixed", key, old):    `4:50: error config.file: the key in credential_file of control of services "s" is not that of its certificate, or cannot be parsed` + "\n",
	} {
		text := fmt.Sprintf(`services "s" {
  actor {
    allow_anyone = true
    control { address = "a:1"; credential_file = %[1]q; ca_file = %[2]q }
    workers { credential_file = %[3]q; ca_file = %[2]q }
  }
}
`, file, cert, filepath.Join(dir, "whole"))
		l := config.Loader{}
		cfg, diags := l.Load([]config.Source{src("in.acl", text)})
		if cfg == nil {
			t.Fatal(diags)
		}
		if got := report(l.CheckFiles(cfg, now)); got != want {
			t.Errorf("%s:\ngot  %swant %s", filepath.Base(file), got, want)
		}
	}
}

// The files of an egress block's control plane are looked at like those of an actor block's.
func TestCheckEgressControlFiles(t *testing.T) {
	cfg, diags := config.Loader{}.Load([]config.Source{src("in.acl", `entrypoints "e" {
  address  = ":1"
  protocol = "connect"
  tls {
    cert_file      = "/none/own.pem"
    key_file       = "/none/own.pem"
    client_auth    = "require"
    client_ca_file = "/none/actors.pem"
  }
  egress {
    control { address = "a:1", credential_file = "/none/egress.pem", ca_file = "/none/api.pem" }
  }
}
`)})
	if cfg == nil {
		t.Fatal(diags)
	}
	got := report(config.Loader{}.CheckFiles(cfg, time.Now()))
	for _, want := range []string{
		`11:50: error config.file: credential_file of control of entrypoints "e": the file does not exist`,
		`11:80: error config.file: ca_file of control of entrypoints "e": the file does not exist`,
	} {
		if !strings.Contains(got, want+"\n") {
			t.Errorf("%s is not in\n%s", want, got)
		}
	}
}

// One run finds everything, also where the text is at fault; what was not written, or not decoded, is not looked for.
func TestLoadHere(t *testing.T) {
	cfg, diags := config.LoadHere([]config.Source{src("f.acl", `
entrypoints "e" {
  address = ":1"
  tls {
    cert_file = "/none/a.pem"
    key_file  = 7
  }
}
routers "r" {
  rule    = "Path(`+"`/`"+`)"
  service = "nobody"
}
`)})
	got := report(diags)
	for _, want := range []string{"5:17: error config.file: cert_file", "6:17: error config.type: key_file", "11:13: error config.reference"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is not in\n%s", want, got)
		}
	}
	if cfg != nil || len(diags) != 3 {
		t.Errorf("%v, %d findings:\n%s", cfg, len(diags), got)
	}
	for _, d := range diags {
		if d.Code == config.CodeFile && !d.ShowValue {
			t.Error("the path of the file is not shown")
		}
	}
}
