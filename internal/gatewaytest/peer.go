package gatewaytest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Names of peers that do not lie on PATH but in the repository's .cache folder,
// where test/install.sh puts them.
const (
	// PeerPythonOpenAI is a Python interpreter that can import openai.
	PeerPythonOpenAI = "python-openai"
	// PeerNodeOpenAI is a folder from which node can import openai: run node in it.
	PeerNodeOpenAI = "node-openai"
	// PeerPebble is an ACME certification authority for tests.
	PeerPebble = "pebble"
	// PeerChallengeServer is a DNS server that tells every name to be at the address that it is told.
	PeerChallengeServer = "pebble-challtestsrv"
	// PeerH2Spec is the HTTP/2 conformance tester.
	PeerH2Spec = "h2spec"
	// PeerEnvoy is the real Envoy.
	PeerEnvoy = "envoy"
)

// cached maps a peer to the files that prove it is installed, the first of which
// is what Peer returns; all relative to .cache.
var cached = map[string][]string{
	PeerPythonOpenAI: {"venv/bin/python", "venv/openai-2.47.0"},
	PeerNodeOpenAI:   {"node", "node/openai-6.49.0"},

	PeerPebble:          {"bin/pebble", "bin/pebble-2.10.3"},
	PeerChallengeServer: {"bin/pebble-challtestsrv", "bin/pebble-2.10.3"},
	PeerH2Spec:          {"bin/h2spec"},
	PeerEnvoy:           {"bench/venv/bin/envoy", "bench/venv/envoy-1.40.0"},
}

// Peer returns the path of a foreign program (nginx, apache2, curl, node) or of
// one of the Peer constants. When it is not installed the test is skipped with a
// reason, or fails when the variable CI is set: a continuous integration run
// never passes by leaving something out.
func Peer(t testing.TB, name string) string {
	t.Helper()
	path, err := findPeer(name)
	if err == nil {
		return path
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("peer %s: %v (run test/install.sh)", name, err)
	}
	t.Skipf("peer %s: %v (run test/install.sh to have this test)", name, err)
	return ""
}

func findPeer(name string) (string, error) {
	files, ok := cached[name]
	if !ok {
		return findProgram(name)
	}
	root, err := RepositoryRoot()
	if err != nil {
		return "", err
	}
	for _, f := range files {
		if _, err := os.Stat(filepath.Join(root, ".cache", f)); err != nil {
			return "", fmt.Errorf("not installed: %s is missing", filepath.Join(".cache", f))
		}
	}
	return filepath.Join(root, ".cache", files[0]), nil
}

// findProgram looks on PATH, then where Debian keeps servers, which is not on
// every user's PATH.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil || !errors.Is(err, exec.ErrNotFound) {
		return path, err
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", err
}

// RepositoryRoot returns the folder that holds go.mod, searched upwards from the
// working directory (which `go test` sets to the package under test).
func RepositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = parent
	}
}
