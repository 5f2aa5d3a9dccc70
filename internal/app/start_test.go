package app_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

func TestStartErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	certFile, _ := certificate(t, dir)
	junk := filepath.Join(dir, "junk.key")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	first := gatewaytest.FreeAddress(t)
	entry := `entrypoints "first" { address = "` + first + `" }` + "\n"
	for _, tc := range []struct {
		name string
		text string
		opts []gatewaytest.Option
		want []string
	}{
		{"no such file", "", []gatewaytest.Option{gatewaytest.FromFile(filepath.Join(dir, "absent.acl"))}, []string{"absent.acl", "no such file"}},
		{
			"occupied port", entry + `entrypoints "second" { address = "` + taken.Addr().String() + `" }`, nil,
			[]string{"second", taken.Addr().String(), "address already in use"},
		},
		{"unreadable certificate", entry + `entrypoints "tls" {
			address = "127.0.0.1:0"
			tls { cert_file = "` + filepath.Join(dir, "none.pem") + `", key_file = "` + junk + `" }
		}`, nil, []string{"cert_file of entrypoints \"tls\"", "does not exist"}},
		{"broken key", entry + `entrypoints "tls" {
			address = "127.0.0.1:0"
			tls { cert_file = "` + certFile + `", key_file = "` + junk + `" }
		}`, nil, []string{"key_file", "private key"}},
		{"no management token", entry + `management {
			enabled = true
			address = "127.0.0.1:0"
			auth_token_env = "SLUICE_TEST_NO_SUCH_VARIABLE"
		}`, nil, []string{"SLUICE_TEST_NO_SUCH_VARIABLE"}},
		{"listen override without web", entry, []gatewaytest.Option{gatewaytest.With(func(o *app.Options) { o.Listen = first })}, []string{"web"}},
		{
			"access log that cannot be opened", entry + `observability { access_log { output = "` + filepath.Join(dir, "none", "access.log") + `" } }`, nil,
			[]string{"access log", "access.log"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := gatewaytest.TryStart(t, tc.text, tc.opts...)
			if err == nil {
				t.Fatal("started")
			}
			text := err.Error()
			var at *app.ConfigError
			if errors.As(err, &at) {
				text = at.Diagnostics.Error()
				for _, d := range at.Diagnostics {
					text += "\n" + d.Message
				}
			}
			for _, w := range tc.want {
				if !strings.Contains(text, w) {
					t.Errorf("the error lacks %q: %v", w, text)
				}
			}
			l, err := net.Listen("tcp", first)
			if err != nil {
				t.Fatalf("something is still bound: %v", err)
			}
			l.Close()
		})
	}
}

// TestStartGivenUp: whoever gives the start up finds nothing bound afterwards, however far it has come.
func TestStartGivenUp(t *testing.T) {
	addr := gatewaytest.FreeAddress(t)
	text := site{entrypoints: `entrypoints "web" { address = "` + addr + `" }`, backends: []string{"http://127.0.0.1:1"}}.String()
	for d := time.Duration(0); d < 3*time.Millisecond; d += 50 * time.Microsecond {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		a, err := app.Start(ctx, app.Options{Text: text, Stdout: os.Stderr})
		cancel()
		if err == nil {
			a.Force()
			<-a.Done()
			continue
		}
		l, lerr := net.Listen("tcp", addr)
		if lerr != nil {
			t.Fatalf("given up after %v with %v: %v", d, err, lerr)
		}
		l.Close()
	}
}

func TestListenOverride(t *testing.T) {
	b := gatewaytest.NewBackend(t, "one")
	addr := gatewaytest.FreeAddress(t)
	text := site{backends: []string{b.URL}}
	g := gatewaytest.Start(t, text.String(), gatewaytest.With(func(o *app.Options) { o.Listen = addr }))
	if g.Addr("web") != addr {
		t.Fatalf("listens at %s", g.Addr("web"))
	}
	c := gatewaytest.Dial(t, addr)
	c.Get("/")
	text.rule = "Path(`/other`)"
	g.Apply(text.String())
	if g.Addr("web") != addr {
		t.Fatalf("after the reload it listens at %s", g.Addr("web"))
	}
	if _, body := c.Get("/other"); body != "one" {
		t.Fatalf("the kept connection gets %q", body)
	}
	if err := g.ReloadText(t.Context(), `entrypoints "x" { address = "127.0.0.1:0" }`); err == nil || !strings.Contains(err.Error(), "web") {
		t.Fatalf("a configuration without web: %v", err)
	}
}
