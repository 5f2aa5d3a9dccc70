package app

import (
	"os"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/egress"
)

// Discard is a file that takes everything and keeps nothing.
func Discard(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// grepOf are the lines of an exposition that contain what.
func grepOf(text, what string) (found []string) {
	for line := range strings.SplitSeq(text, "\n") {
		if strings.Contains(line, what) {
			found = append(found, line)
		}
	}
	return found
}

// EgressGateway is the gateway of actors of an entrypoint.
func (a *App) EgressGateway(name string) *egress.Gateway { return a.egress.current()[name].Gateway }

// Authority is one of the control plane's, by its name.
func (a *Ateapi) Authority(name string) *cert.Authority { return a.hub.Authority(name) }
