package gatewaytest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

func TestPeerFindsPrograms(t *testing.T) {
	path := gatewaytest.Peer(t, "go")
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		t.Fatalf("Peer(go) = %q, which is no program: %v", path, err)
	}
}

// recorder stands in for a test that asks for a peer which is not there.
type recorder struct {
	testing.TB
	fatal, skipped bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Fatalf(string, ...any) { r.fatal = true; panic(r) }
func (r *recorder) Skipf(string, ...any)  { r.skipped = true; panic(r) }

func ask(name string) (r *recorder) {
	r = &recorder{}
	defer func() { _ = recover() }()
	gatewaytest.Peer(r, name)
	return r
}

func TestPeerMissing(t *testing.T) {
	const absent = "no-such-program-anywhere"
	t.Setenv("CI", "")
	if r := ask(absent); !r.skipped || r.fatal {
		t.Errorf("outside of CI: skipped %v, fatal %v; want a skip", r.skipped, r.fatal)
	}
	t.Setenv("CI", "true")
	if r := ask(absent); r.skipped || !r.fatal {
		t.Errorf("in CI: skipped %v, fatal %v; want a failure", r.skipped, r.fatal)
	}
}

func TestRepositoryRoot(t *testing.T) {
	root, err := gatewaytest.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "internal", "gatewaytest")); err != nil {
		t.Errorf("RepositoryRoot() = %q: %v", root, err)
	}
	t.Chdir(t.TempDir())
	if got, err := gatewaytest.RepositoryRoot(); err == nil {
		t.Errorf("RepositoryRoot() outside of a module = %q, want an error", got)
	}
}
