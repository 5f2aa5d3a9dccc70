package gatewaytest_test

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestProcess(t *testing.T) {
	p := gatewaytest.Run(t, "/bin/sh", "-c", `trap 'echo bye; exit 3' TERM; echo "pid $$ ready"; while :; do sleep 0.02; done`)
	if got := p.Await(t, `pid (\d+) ready`); got == "" || p.PID() == 0 {
		t.Errorf("pid %q", got)
	}
	if _, err := p.Ended(time.Millisecond); err == nil {
		t.Error("ended before it was told to")
	}
	p.Signal(t, syscall.SIGTERM)
	if code, err := p.Ended(10 * time.Second); code != 3 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
	if !strings.HasSuffix(p.Output(), "bye\n") {
		t.Errorf("output %q", p.Output())
	}
}
