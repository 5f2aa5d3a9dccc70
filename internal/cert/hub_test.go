package cert_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/mutual"
)

const (
	routerURI = "spiffe://cluster.local/ns/ate-system/sa/atenet-router"
	workerURI = "spiffe://cluster.local/ns/pool/sa/default"
)

func openHub(t *testing.T, o cert.HubOptions) *cert.Hub {
	t.Helper()
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	h, err := cert.OpenHub(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() }) // again, for some
	return h
}

func mount(t *testing.T, h *cert.Hub, dir, authority string, leaf cert.Leaf) {
	t.Helper()
	if err := h.Mount(cert.Mount{Dir: dir, Authority: authority, Leaf: &leaf}); err != nil {
		t.Fatal(err)
	}
}

// TestHubFiles looks at the layout, and that keys are only where they may be.
func TestHubFiles(t *testing.T) {
	dir := t.TempDir()
	h := openHub(t, cert.HubOptions{Dir: dir, MinSigningAge: 1})
	mount(t, h, "router/podidentity.podcert.ate.dev", cert.WorkloadAuthority, cert.WorkloadLeaf(routerURI, false))
	if err := h.Mount(cert.Mount{Dir: "egress/actor-id-ca-certs", Authority: cert.ActorAuthority, Trust: "ca.crt"}); err != nil {
		t.Fatal(err)
	}
	links := func() (data, file string) {
		t.Helper()
		at := filepath.Join(dir, "router/podidentity.podcert.ate.dev")
		data, err := os.Readlink(filepath.Join(at, "..data"))
		if err != nil {
			t.Fatal(err)
		}
		file, err = os.Readlink(filepath.Join(at, cert.CredentialFile))
		if err != nil {
			t.Fatal(err)
		}
		return data, file
	}
	before, file := links()
	if file != "..data/credential-bundle.pem" {
		t.Errorf("the file leads to %q", file)
	}
	bundle, err := os.ReadFile(h.Path("egress/actor-id-ca-certs", "ca.crt"))
	if err != nil || !bytes.Equal(bundle, h.Authority(cert.ActorAuthority).Bundle()) {
		t.Errorf("ca.crt is %q, %v", bundle, err)
	}
	if _, err := os.Stat(h.Path("egress/actor-id-ca-certs", cert.CredentialFile)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a mount of trust alone has a credential: %v", err)
	}
	for range 3 {
		for _, step := range []func(string) error{h.Add, h.Activate, h.Distrust} {
			if err := step(cert.WorkloadAuthority); err != nil {
				t.Fatal(err)
			}
		}
	}
	if after, _ := links(); after == before {
		t.Error("a rotation did not swap the link")
	}
	checkModes(t, dir)
	for _, step := range []func(string) error{h.Add, h.Activate} {
		if err := step(cert.WorkloadAuthority); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Retire(cert.WorkloadAuthority); !errors.Is(err, cert.ErrInUse) {
		t.Errorf("retiring what has signed certificates of a day: %v", err)
	}

	// Another process opens the same authorities, and sweeps what a crash has left behind.
	for _, name := range []string{"..0123456789abcdef", "..left"} {
		if err := os.MkdirAll(filepath.Join(dir, "router/podidentity.podcert.ate.dev", name, "x"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	again := openHub(t, cert.HubOptions{Dir: dir})
	if !bytes.Equal(again.Authority(cert.WorkloadAuthority).Bundle(), h.Authority(cert.WorkloadAuthority).Bundle()) {
		t.Error("opened again, the authority is another")
	}
	mount(t, again, "router/podidentity.podcert.ate.dev", cert.WorkloadAuthority, cert.WorkloadLeaf(routerURI, false))
	checkModes(t, dir)
}

// Of those who open a fresh directory at the same time, one makes its authorities, and the next is welcome after it.
func TestHubIsAlone(t *testing.T) {
	dir := t.TempDir()
	var hubs [8]*cert.Hub
	var opening sync.WaitGroup
	for i := range hubs {
		opening.Go(func() {
			h, err := cert.OpenHub(cert.HubOptions{Dir: dir})
			if hubs[i] = h; (err == nil) != (h != nil) || err != nil && !errors.Is(err, cert.ErrLocked) {
				t.Errorf("OpenHub: %v", err)
			}
		})
	}
	opening.Wait()
	var bundle []byte
	for _, h := range hubs {
		if h == nil {
			continue
		}
		if bundle != nil {
			t.Fatal("two hubs have one directory")
		}
		bundle = h.Authority(cert.ActorAuthority).Bundle()
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if again := openHub(t, cert.HubOptions{Dir: dir}); bundle == nil || !bytes.Equal(again.Authority(cert.ActorAuthority).Bundle(), bundle) {
		t.Error("the next hub has other authorities")
	}
}

// checkModes walks the files: whoever holds a private key has mode 0600, and no directory has more than two generations.
func checkModes(t *testing.T, dir string) {
	t.Helper()
	keys, generations := 0, map[string]int{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), "..") {
			generations[filepath.Dir(name)]++
		}
		if !d.Type().IsRegular() {
			return nil
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if secret := bytes.Contains(content, []byte("PRIVATE KEY")); secret {
			keys++
			if info.Mode().Perm() != 0o600 {
				t.Errorf("%s holds a key and has mode %v", name, info.Mode())
			}
		}
		return nil
	})
	if err != nil || keys == 0 {
		t.Errorf("%d files with keys, %v", keys, err)
	}
	for at, n := range generations {
		if n > 2 {
			t.Errorf("%s has %d generations", at, n)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "ca")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory of the authorities' keys: %v, %v", info.Mode(), err)
	}
}

func TestHubRefuses(t *testing.T) {
	h := openHub(t, cert.HubOptions{})
	leaf := cert.WorkloadLeaf(routerURI, false)
	nobody := cert.Leaf{Client: true, Life: time.Hour}
	for name, m := range map[string]cert.Mount{
		"no authority":          {Dir: "a", Authority: "other", Leaf: &leaf},
		"a directory elsewhere": {Dir: "../a", Authority: cert.WorkloadAuthority, Leaf: &leaf},
		"an absolute directory": {Dir: "/a", Authority: cert.WorkloadAuthority, Leaf: &leaf},
		"a leaf for nobody":     {Dir: "a", Authority: cert.WorkloadAuthority, Leaf: &nobody},
	} {
		if err := h.Mount(m); err == nil {
			t.Errorf("%s: mounted", name)
		}
	}
	if err := h.Add("other"); err == nil {
		t.Error("an authority that is not there is rotated")
	}
	if err := h.Activate(cert.WorkloadAuthority); !errors.Is(err, cert.ErrRotation) {
		t.Errorf("Activate before Add: %v", err)
	}
	if h.Authority("other") != nil {
		t.Error("there is an authority of any name")
	}
}

// renewing runs a hub in dir whose one certificate lasts 10 minutes, and returns that as its owner reads it, and the
// hub's end.
func renewing(t *testing.T, dir string) (own *mutual.Credential, stop func() error) {
	own, _, stop = renewingHub(t, dir)
	return own, stop
}

func renewingHub(t *testing.T, dir string) (own *mutual.Credential, h *cert.Hub, stop func() error) {
	h = openHub(t, cert.HubOptions{Dir: dir})
	short := cert.WorkloadLeaf(workerURI, true)
	short.Life = 10 * time.Minute
	mount(t, h, "worker", cert.WorkloadAuthority, short)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	own, err := mutual.OpenCredential(h.Path("worker", cert.CredentialFile))
	if err != nil {
		t.Fatal(err)
	}
	return own, h, func() error { cancel(); return <-done }
}

// TestHubRenews runs the hub for a day of its own time: leaves are renewed at half their life and are never stale.
func TestHubRenews(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		own, stop := renewing(t, dir)
		seen := map[string]bool{}
		for range 24 * 60 {
			time.Sleep(time.Minute)
			synctest.Wait()
			if left := time.Until(own.Leaf().NotAfter); left < 4*time.Minute {
				t.Fatalf("%s are left of a certificate for 10 minutes", left)
			}
			seen[own.Leaf().SerialNumber.String()] = true
		}
		if len(seen) < 280 || len(seen) > 300 {
			t.Errorf("%d certificates in a day, want one each 5 minutes", len(seen))
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A clock that is set, or a machine that has slept, makes certificates old at once, or has them begin in the future. They are renewed
// within a minute all the same: timers have noticed nothing.
func TestHubGoesByTheWallClock(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		own, hub, stop := renewingHub(t, dir)
		for _, jump := range []time.Duration{20 * time.Minute, -24 * time.Hour} {
			before := own.Leaf().SerialNumber
			time.Sleep(time.Second) // the timer for its renewal runs
			synctest.Wait()
			hub.Elapse("worker", jump)
			time.Sleep(time.Minute)
			synctest.Wait()
			if own.Leaf().SerialNumber.Cmp(before) == 0 {
				t.Errorf("a certificate that is older by %s is not renewed within a minute", jump)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A renewal that fails leaves the files, is tried again, and heals by itself.
func TestHubRetries(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		own, stop := renewing(t, dir)
		first := own.Leaf().SerialNumber
		aside := filepath.Join(dir, "aside")
		if err := errors.Join(os.Rename(filepath.Join(dir, "worker"), aside), os.WriteFile(filepath.Join(dir, "worker"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Minute)
		synctest.Wait()
		if own.Leaf().SerialNumber.Cmp(first) != 0 || own.Err() == nil {
			t.Errorf("without its file the last good certificate is not in force, or nobody is told: %v", own.Err())
		}
		if err := errors.Join(os.Remove(filepath.Join(dir, "worker")), os.Rename(aside, filepath.Join(dir, "worker"))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(6 * time.Second)
		synctest.Wait()
		if own.Leaf().SerialNumber.Cmp(first) == 0 || own.Err() != nil {
			t.Errorf("it was not tried again: %v", own.Err())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Keys leave the package in a *tls.Certificate or not at all: no exported function, field or variable is of a key's type.
func TestKeysStayInside(t *testing.T) {
	packages, err := filepath.Glob("*.go")
	if err != nil || len(packages) == 0 {
		t.Fatal(packages, err)
	}
	for _, name := range packages {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		tree, err := parser.ParseFile(token.NewFileSet(), name, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.FileExports(tree) // drops all that others cannot name, but for the bodies of functions
		for _, decl := range tree.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok {
				f.Body = nil
			}
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && (s.Sel.Name == "Signer" || strings.Contains(s.Sel.Name, "PrivateKey")) {
				t.Errorf("%s: something exported is a %s", name, s.Sel.Name)
			}
			return true
		})
	}
}

// What is printed of the keepers of keys is their name.
func TestKeysAreNotPrinted(t *testing.T) {
	a := openAuthority(t, cert.AuthorityOptions{Name: "mine"})
	for _, format := range []string{"%v", "%+v", "%s"} {
		if got := fmt.Sprintf(format, a); got != "authority mine" {
			t.Errorf("%s prints %.100q", format, got)
		}
	}
}

func TestBundles(t *testing.T) {
	dir := t.TempDir()
	h := openHub(t, cert.HubOptions{})
	mount(t, h, "a", cert.WorkloadAuthority, cert.WorkloadLeaf(routerURI, false))
	mount(t, h, "b", cert.WorkloadAuthority, cert.WorkloadLeaf(workerURI, false))
	read := func(name, file string) []byte {
		t.Helper()
		content, err := os.ReadFile(h.Path(name, file))
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	replace := func(name string, content []byte) {
		t.Helper()
		at := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(at+".new", content, 0o600), os.Rename(at+".new", at)); err != nil {
			t.Fatal(err)
		}
	}
	good, other, trust := read("a", cert.CredentialFile), read("b", cert.CredentialFile), read("a", cert.TrustFile)
	replace("own", good)
	replace("roots", trust)
	own, err := mutual.OpenCredential(filepath.Join(dir, "own"))
	if err != nil {
		t.Fatal(err)
	}
	roots, err := mutual.OpenTrust(filepath.Join(dir, "roots"))
	if err != nil {
		t.Fatal(err)
	}
	first, pool := own.Leaf(), roots.Roots()
	if own.Leaf() != first || roots.Roots() != pool {
		t.Error("a file that has not changed is read again")
	}
	mixed := append(other[:bytes.Index(other, []byte("-----BEGIN CERT"))], good[bytes.Index(good, []byte("-----BEGIN CERT")):]...)
	for name, content := range map[string][]byte{
		"empty": {}, "rubbish": []byte("rubbish"), "cut": good[:len(good)-50], "a key alone": good[:bytes.Index(good, []byte("-----BEGIN CERT"))],
		"certificates alone": trust, "another's key": mixed, "the chain cut": append(bytes.Clone(good), trust[:len(trust)-50]...),
		"a broken block": append(bytes.Clone(good), "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"...),
		"too large":      bytes.Repeat([]byte("#"), 1<<20+1),
	} {
		replace("own", content)
		if own.Leaf() != first || own.Err() == nil {
			t.Errorf("%s: the certificate in force changed, or %v", name, own.Err())
		}
		if c, err := mutual.OpenCredential(filepath.Join(dir, "own")); err == nil {
			t.Errorf("%s: opened %v", name, c.Leaf().URIs)
		}
	}
	for name, content := range map[string][]byte{
		"empty": {}, "rubbish": []byte("rubbish"), "a key": good, "cut": trust[:len(trust)-50],
		"the second cut":     append(bytes.Clone(trust), trust[:len(trust)-50]...),
		"a broken block":     append([]byte("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"), trust...),
		"half a certificate": []byte("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"),
	} {
		replace("roots", content)
		if roots.Roots() != pool || roots.Err() == nil {
			t.Errorf("%s: the trust in force changed, or %v", name, roots.Err())
		}
		if _, err := mutual.OpenTrust(filepath.Join(dir, "roots")); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
	replace("own", read("b", cert.CredentialFile))
	replace("roots", append([]byte("# the same, with a comment\n"), trust...))
	if own.Leaf().Equal(first) || own.Err() != nil || roots.Roots() == pool || roots.Err() != nil {
		t.Errorf("good content again: %v, %v", own.Err(), roots.Err())
	}
	if _, err := own.Leaf().Verify(x509.VerifyOptions{Roots: roots.Roots(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if err := os.Remove(filepath.Join(dir, "own")); err != nil || own.Leaf() == nil || own.Err() == nil {
		t.Errorf("without the file: %v", own.Err())
	}
}
