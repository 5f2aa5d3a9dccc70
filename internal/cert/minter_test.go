package cert_test

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
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cert"
)

func signingRequest(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// serveMinter serves a minter on a socket until the test ends.
func serveMinter(t *testing.T, m cert.Minter) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "minter.sock")
	l, err := cert.ListenMinter(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- cert.ServeMinter(ctx, l, m, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return path
}

// TestMinter asks the same of an authority and of one behind a socket.
func TestMinter(t *testing.T) {
	a, err := cert.OpenAuthority(cert.AuthorityOptions{Name: "mitm"})
	if err != nil {
		t.Fatal(err)
	}
	remote := cert.NewSocketMinter(serveMinter(t, a))
	defer func() { _ = remote.Close() }()
	csr, addr := signingRequest(t), netip.MustParseAddr("93.184.216.34")
	for name, m := range map[string]cert.Minter{"authority": a, "socket": remote} {
		for _, tc := range []struct {
			name string
			csr  []byte
			host string
			addr netip.Addr
			ok   bool
		}{
			{"a name", csr, "api.example.com", netip.Addr{}, true},
			{"an address", csr, "", addr, true},
			{"an IPv6 address", csr, "", netip.MustParseAddr("2001:db8::1"), true},
			{"neither", csr, "", netip.Addr{}, false},
			{"both", csr, "api.example.com", addr, false},
			{"a zone", csr, "", netip.MustParseAddr("fe80::1%eth0"), false},
			{"a pattern", csr, "*.example.com", netip.Addr{}, false},
			{"another case", csr, "API.example.com", netip.Addr{}, false},
			{"a dot at the end", csr, "api.example.com.", netip.Addr{}, false},
			{"a long name", csr, strings.Repeat("a.", 127) + "a", netip.Addr{}, false},
			{"no request", nil, "api.example.com", netip.Addr{}, false},
			{"a broken request", csr[:len(csr)-1], "api.example.com", netip.Addr{}, false},
			{"a large request", make([]byte, cert.MaxRequest+1), "api.example.com", netip.Addr{}, false},
		} {
			chain, err := m.Mint(t.Context(), tc.csr, tc.host, tc.addr)
			if tc.ok != (err == nil) || !tc.ok && !errors.Is(err, cert.ErrRequest) {
				t.Errorf("%s, %s: %v", name, tc.name, err)
			}
			if !tc.ok || err != nil {
				continue
			}
			leaf, err := x509.ParseCertificate(chain[0])
			if err != nil {
				t.Fatal(err)
			}
			host := tc.host
			if host == "" {
				host = tc.addr.String()
			}
			if _, err := leaf.Verify(x509.VerifyOptions{Roots: a.Roots(), DNSName: host, CurrentTime: time.Now()}); err != nil || leaf.IsCA || len(leaf.URIs) > 0 {
				t.Errorf("%s, %s: %v", name, tc.name, err)
			}
		}
	}
}

type brokenMinter struct{}

func (brokenMinter) Mint(context.Context, []byte, string, netip.Addr) ([][]byte, error) {
	return nil, errors.New("secret cause")
}

func TestMinterFails(t *testing.T) {
	path := serveMinter(t, brokenMinter{})
	m := cert.NewSocketMinter(path)
	defer func() { _ = m.Close() }()
	if _, err := m.Mint(t.Context(), signingRequest(t), "a.example", netip.Addr{}); err == nil || errors.Is(err, cert.ErrRequest) || strings.Contains(err.Error(), "secret") {
		t.Errorf("a minter that is broken: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v, %v", info.Mode(), err)
	}
	if _, err := cert.ListenMinter(path); !errors.Is(err, cert.ErrLocked) {
		t.Errorf("a second one at the socket: %v", err)
	}
	// What a process that was killed has left is no obstacle; a file that is no socket is left alone.
	stale := filepath.Join(t.TempDir(), "stale.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	again, err := cert.ListenMinter(stale)
	if err != nil {
		t.Errorf("over what is left: %v", err)
	} else {
		_ = again.Close()
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := cert.ListenMinter(file); err == nil {
		t.Error("over a file")
	}
	away := cert.NewSocketMinter(filepath.Join(t.TempDir(), "none"))
	defer func() { _ = away.Close() }()
	if _, err := away.Mint(t.Context(), signingRequest(t), "a.example", netip.Addr{}); err == nil {
		t.Error("no minter, no error")
	}
}
