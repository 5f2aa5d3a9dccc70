package demo_test

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/demo"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// The official clients are the judges of our answer shapes. Each script exits
// non-zero when something is not as its library expects.
func TestOfficialClients(t *testing.T) {
	for _, c := range []struct{ name, peer, program, script string }{
		{"python", gatewaytest.PeerPythonOpenAI, "", "client.py"},
		{"node", gatewaytest.PeerNodeOpenAI, "node", "client.mjs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			program, folder := gatewaytest.Peer(t, c.peer), ""
			if c.program != "" {
				program, folder = gatewaytest.Peer(t, c.program), program
			}
			script, err := filepath.Abs(filepath.Join("testdata", c.script))
			if err != nil {
				t.Fatal(err)
			}
			b, url := start(t, demo.Options{Name: "sdk", Pace: time.Millisecond})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, script, url+"/v1", folder)
			cmd.Dir = folder
			out, err := cmd.CombinedOutput()
			if err != nil || !bytes.Contains(out, []byte("all checks passed")) {
				t.Fatalf("%v\n%s", err, out)
			}
			// The last thing a script does is to leave a slow stream.
			waitFor(t, b, func(s demo.Stats) bool { return s.Active == 0 })
			if s := b.Stats(); s.Completed != 4 || s.Cancelled != 1 || s.Refused != 1 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}
