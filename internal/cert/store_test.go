package cert_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
)

// What keeps a lock of the ACME storage fresh looks every five seconds whether the lock is still there.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/caddyserver/certmagic.keepLockfileFresh"))
}

// material is a certificate with its key as PEM.
type material struct{ cert, key []byte }

// issue makes a certificate that signs itself, told apart by its serial number.
func issue(t *testing.T, serial int64) material {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "example"}, DNSNames: []string{"example.org"},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(2100, 1, 1, 0, 0, int(serial), 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return material{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}
}

// place is a pair of files that are written anew.
type place struct{ cert.Files }

func newPlace(t *testing.T) place {
	dir := t.TempDir()
	return place{cert.Files{CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem")}}
}

func (p place) put(t *testing.T, m material) {
	t.Helper()
	for name, b := range map[string][]byte{p.CertFile: m.cert, p.KeyFile: m.key} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func (p place) options() cert.Options { return cert.Options{Files: []cert.Files{p.Files}} }

func load(t *testing.T, s *cert.Store, o cert.Options) *cert.Source {
	t.Helper()
	src, err := s.Load(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = src.Close() })
	return src
}

// serial is the number of the first certificate that a source serves.
func serial(s *cert.Source) int64 { return s.Certificates()[0].SerialNumber.Int64() }

// handshake connects over loopback and returns what the client saw. A pipe in memory would not do: both ends may write
// at once.
func handshake(t *testing.T, server, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	var wg sync.WaitGroup
	wg.Go(func() {
		a, err := ln.Accept()
		if err != nil {
			return
		}
		defer func() { _ = a.Close() }()
		s := tls.Server(a, server)
		if s.Handshake() == nil {
			_, _ = s.Write([]byte("x")) // tickets of TLS 1.3 go out before it
		}
	})
	b, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(b, client)
	_, err = io.ReadFull(c, make([]byte, 1))
	state := c.ConnectionState()
	_ = b.Close()
	wg.Wait()
	return state, err
}

func anyServer() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true, ServerName: "example.org", NextProtos: []string{"h2", "http/1.1"}}
}

func TestLoad(t *testing.T) {
	p := newPlace(t)
	p.put(t, issue(t, 7))
	store := cert.NewStore(nil)
	src := load(t, store, p.options())
	state, err := handshake(t, src.Config(), anyServer())
	if err != nil {
		t.Fatal(err)
	}
	if n := state.PeerCertificates[0].SerialNumber.Int64(); n != 7 || state.NegotiatedProtocol != "h2" {
		t.Errorf("serial %d, protocol %q", n, state.NegotiatedProtocol)
	}
	if serial(src) != 7 {
		t.Error("the source shows another certificate")
	}
	want := time.Date(2100, 1, 1, 0, 0, 7, 0, time.UTC)
	all := store.Statuses()
	if len(all) != 1 || !all[0].NotAfter.Equal(want) || all[0].CertFile != p.CertFile || all[0].DNSNames[0] != "example.org" || all[0].Err != nil {
		t.Errorf("statuses %+v", all)
	}
	_, _ = src.Close(), src.Close()
	if all := store.Statuses(); len(all) != 0 {
		t.Errorf("after Close: %+v", all)
	}
	if _, err := handshake(t, src.Config(), anyServer()); err != nil {
		t.Errorf("a closed source breaks connections that have it: %v", err)
	}
}

func TestVersionsAndProtocols(t *testing.T) {
	p := newPlace(t)
	p.put(t, issue(t, 1))
	for name, c := range map[string]struct {
		min       uint16
		protocols []string
		clientMax uint16
		version   uint16 // 0: refused
		protocol  string
	}{
		"default":                {0, nil, 0, tls.VersionTLS13, "h2"},
		"an old client":          {0, nil, tls.VersionTLS12, tls.VersionTLS12, "h2"},
		"too old":                {0, nil, tls.VersionTLS11, 0, ""},
		"1.3 only":               {tls.VersionTLS13, nil, 0, tls.VersionTLS13, "h2"},
		"1.3 only, older client": {tls.VersionTLS13, nil, tls.VersionTLS12, 0, ""},
		"HTTP/1.1 only":          {0, []string{"http/1.1"}, 0, tls.VersionTLS13, "http/1.1"},
	} {
		t.Run(name, func(t *testing.T) {
			o := p.options()
			o.MinVersion, o.Protocols = c.min, c.protocols
			client := anyServer()
			client.MinVersion, client.MaxVersion = tls.VersionTLS10, c.clientMax
			state, err := handshake(t, load(t, cert.NewStore(nil), o).Config(), client)
			if c.version == 0 {
				if err == nil {
					t.Errorf("served with version %x", state.Version)
				}
				return
			}
			if err != nil || state.Version != c.version || state.NegotiatedProtocol != c.protocol {
				t.Errorf("version %x, protocol %q, %v", state.Version, state.NegotiatedProtocol, err)
			}
		})
	}
}

func TestBrokenFiles(t *testing.T) {
	good, other := issue(t, 1), issue(t, 2)
	for name, c := range map[string]struct {
		cert, key []byte // nil: no file
		want      string
	}{
		"no certificate":      {nil, good.key, "reading the certificate: open "},
		"no key":              {good.cert, nil, "reading the key: open "},
		"empty":               {[]byte{}, []byte{}, "failed to find any PEM data in certificate input"},
		"swapped":             {good.key, good.cert, "but did find a private key; PEM inputs may have been switched"},
		"another's key":       {good.cert, other.key, "private key does not match public key"},
		"cut off":             {good.cert[:len(good.cert)/2], good.key, "failed to find any PEM data"},
		"more than a pair is": {append(bytes.Repeat([]byte("#\n"), 1<<20), good.cert...), good.key, "is larger than 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			p := newPlace(t)
			p.put(t, good)
			store := cert.NewStore(slog.New(slog.NewTextHandler(&log, nil)))
			src := load(t, store, p.options())

			p.put(t, material{c.cert, c.key})
			for name, b := range map[string][]byte{p.CertFile: c.cert, p.KeyFile: c.key} {
				if b == nil {
					if err := os.Remove(name); err != nil {
						t.Fatal(err)
					}
				}
			}
			if _, err := store.Load(p.options()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Load = %v, want %q", err, c.want)
			}
			for range 2 {
				if err := store.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("Reload = %v, want %q", err, c.want)
				}
			}
			if n := strings.Count(log.String(), "broken"); n != 1 {
				t.Errorf("logged %d times:\n%s", n, log.String())
			}
			if strings.Contains(log.String(), "PRIVATE") {
				t.Errorf("the log shows a key:\n%s", log.String())
			}
			if all := store.Statuses(); all[0].Err == nil {
				t.Error("the status shows no error")
			}
			if state, err := handshake(t, src.Config(), anyServer()); err != nil || state.PeerCertificates[0].SerialNumber.Int64() != 1 {
				t.Errorf("the last good pair is not served: %v", err)
			}

			p.put(t, other)
			if err := store.Reload(t.Context()); err != nil {
				t.Error(err)
			}
			if state, err := handshake(t, src.Config(), anyServer()); err != nil || state.PeerCertificates[0].SerialNumber.Int64() != 2 {
				t.Errorf("the repaired pair is not served: %v", err)
			}
			if all := store.Statuses(); all[0].Err != nil {
				t.Errorf("the status still shows %v", all[0].Err)
			}
		})
	}
}

// A pair lives while any source holds it, and a load of the same files takes a change of their content up for all.
func TestSourcesShareAPair(t *testing.T) {
	p := newPlace(t)
	p.put(t, issue(t, 1))
	store := cert.NewStore(nil)
	a := load(t, store, p.options())
	p.put(t, issue(t, 2))
	b := load(t, store, p.options())
	if a.Config() != b.Config() || serial(a) != 2 {
		t.Error("the sources differ")
	}
	_ = a.Close()
	p.put(t, issue(t, 3))
	if err := store.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := serial(b); n != 3 {
		t.Errorf("serial %d after one of two sources was closed", n)
	}
}

func TestReloadIsBounded(t *testing.T) {
	p := newPlace(t)
	p.put(t, issue(t, 1))
	store := cert.NewStore(nil)
	load(t, store, p.options())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := store.Reload(ctx); err == nil {
		t.Error("no error")
	}
}

// Fifty rotations while clients connect: every handshake succeeds, and each sees a certificate that was there.
func TestRotationUnderLoad(t *testing.T) {
	const rotations = 50
	p := newPlace(t)
	p.put(t, issue(t, 1))
	store := cert.NewStore(nil)
	src := load(t, store, p.options())
	set := entrypoint.NewSet(entrypoint.Setup{})
	plan, err := set.Prepare(t.Context(), map[string]*entrypoint.Options{"web": {
		Address: "127.0.0.1:0", TLS: src.Config,
		HTTP: func(c conn.Conn, _ *drain.Tracker) { _, _ = c.Write([]byte("x")) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	plan.Commit()
	plan.Finish(0)
	defer func() {
		if _, err := set.Shutdown(t.Context(), drain.Prompt); err != nil {
			t.Error(err)
		}
	}()
	var newest, served atomic.Int64
	newest.Store(1)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			client := anyServer()
			for !stop.Load() {
				from := newest.Load()
				c, err := tls.Dial("tcp", set.Addr("web").String(), client)
				if err != nil {
					t.Error(err)
					return
				}
				_, err = io.ReadFull(c, make([]byte, 1))
				n := c.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
				if to := newest.Load() + 1; err != nil || n < from || n > to {
					t.Errorf("serial %d, between %d and %d expected, %v", n, from, to, err)
				}
				_ = c.Close()
				served.Add(1)
			}
		})
	}
	for serial := int64(2); serial <= rotations+1; serial++ {
		seen := served.Load()
		p.put(t, issue(t, serial))
		if err := store.Reload(t.Context()); err != nil {
			t.Error(err)
		}
		newest.Store(serial)
		for tick := time.NewTicker(time.Millisecond); served.Load() == seen && !t.Failed(); <-tick.C {
		}
	}
	stop.Store(true)
	wg.Wait()
	if st := set.Stats()[0]; st.HandshakeFailures != 0 {
		t.Errorf("stats %+v", st)
	}
}

// Run takes changed files up within its interval.
func TestRun(t *testing.T) {
	first, second := issue(t, 1), issue(t, 2)
	p := newPlace(t)
	p.put(t, first)
	synctest.Test(t, func(t *testing.T) {
		store := cert.NewStore(nil)
		src := load(t, store, p.options())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- store.Run(ctx) }()
		p.put(t, second)
		time.Sleep(cert.CheckInterval - time.Second)
		synctest.Wait()
		if n := serial(src); n != 1 {
			t.Errorf("serial %d before the interval is over", n)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := serial(src); n != 2 {
			t.Errorf("serial %d after the interval", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Sessions resume over reloads and two rotations of the ticket keys, and nowhere but under the same files.
func TestSessionTickets(t *testing.T) {
	here, there := newPlace(t), newPlace(t)
	m := issue(t, 1)
	here.put(t, m)
	there.put(t, m)
	synctest.Test(t, func(t *testing.T) {
		store := cert.NewStore(nil)
		src := load(t, store, here.options())
		other := load(t, store, there.options())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- store.Run(ctx) }()
		defer func() { cancel(); <-done }()

		client := anyServer()
		client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
		client.Time = func() time.Time { return time.Unix(1e9, 0) } // Go's client would drop tickets by their age
		resumed := func(src *cert.Source) bool {
			config := src.Config().Clone() // the keys are taken along; only the clock differs
			config.Time = client.Time
			state, err := handshake(t, config, client)
			if err != nil {
				t.Fatal(err)
			}
			return state.DidResume
		}
		if resumed(src) {
			t.Error("resumed nothing")
		}
		if !resumed(src) {
			t.Error("not resumed at once")
		}
		again := load(t, store, here.options()) // a reload
		_ = src.Close()
		here.put(t, m)
		if !resumed(again) {
			t.Error("not resumed after a reload")
		}
		if resumed(other) {
			t.Error("resumed under other files")
		}
		if resumed(again) {
			t.Error("the other's ticket resumed here")
		}
		for rotation, want := range []bool{true, true, false} {
			client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
			if resumed(again) {
				t.Error("resumed with an empty cache")
			}
			time.Sleep(time.Duration(rotation+1) * 24 * time.Hour)
			synctest.Wait()
			if got := resumed(again); got != want {
				t.Errorf("after %d rotations: resumed = %v", rotation+1, got)
			}
		}
	})
}
