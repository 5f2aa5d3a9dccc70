// Package sdk runs the official OpenAI clients, as users have them, against the demo: the real binary with its two
// bundled backends. The scripts beside this file are the tests; each prints what it has checked.
package sdk

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// binary is the server, built once.
var binary string

func TestMain(m *testing.M) {
	folder, err := os.MkdirTemp("", "sluice-sdk")
	if err == nil {
		binary, err = gatewaytest.Build(folder, "sluice", "sdk-test")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(folder)
		os.Exit(code)
	}))
}

func TestOfficialClients(t *testing.T) {
	for _, c := range []struct {
		name, peer, program, script string
		checks                      int
	}{
		{"python", gatewaytest.PeerPythonOpenAI, "", "client.py", 13},
		{"node", gatewaytest.PeerNodeOpenAI, "node", "client.mjs", 13},
	} {
		t.Run(c.name, func(t *testing.T) {
			program, folder := gatewaytest.Peer(t, c.peer), ""
			if c.program != "" {
				program, folder = gatewaytest.Peer(t, c.program), program
			}
			script, err := filepath.Abs(c.script)
			if err != nil {
				t.Fatal(err)
			}
			gateway := gatewaytest.Run(t, binary, "demo", "--listen", "127.0.0.1:0")
			url := gateway.Await(t, `Sluice serves on (http://\S+),`)

			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, script, url, folder)
			cmd.Dir = folder
			out, err := cmd.CombinedOutput()
			t.Logf("%s\n%s", c.name, out)
			if err != nil {
				t.Fatalf("%v; the gateway wrote:\n%s", err, gateway.Output())
			}
			if n := bytes.Count(out, []byte("\nok ")) + 1; n != c.checks {
				t.Errorf("%d checks were made, want %d", n, c.checks)
			}
			gateway.Stop(t)
		})
	}
}
