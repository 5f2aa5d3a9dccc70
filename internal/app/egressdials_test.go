package app_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-proxy/sluice/internal/egress"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// I5: an actor that opens connections too fast is told so, and the line names the limit.
func TestI5_EgressDialRate(t *testing.T) {
	const several = 16 // tunnels, which are fast enough together on a slow machine, too
	var hosts strings.Builder
	for n := range several {
		fmt.Fprintf(&hosts, "93.184.216.34 n%d.example.org\n", n)
	}
	w := newWorld(t, hosts.String(), "")
	p := w.run("a1")
	p.may(everythingAllowed)
	var all sync.WaitGroup
	var answers atomic.Int64
	var refused atomic.Bool
	for n := range several {
		all.Go(func() {
			c, status, err := p.ask("93.184.216.34:80") // where nobody is: each request dials
			if err != nil || status != 200 {
				t.Errorf("CONNECT: %d %v", status, err)
				return
			}
			defer func() { _ = c.Close() }()
			for in := bufio.NewReader(c); !refused.Load() && answers.Add(1) < 5000; {
				fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: n%d.example.org\r\n\r\n", n)
				resp, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				if resp.StatusCode == 503 {
					refused.Store(true)
				}
			}
		})
	}
	all.Wait()
	if !refused.Load() {
		t.Fatalf("none of %d is told", answers.Load())
	}
	gatewaytest.Until(t, "the limit is noted", func() bool {
		return slices.ContainsFunc(w.audit(0), func(r egress.Record) bool {
			return r.Reason == egress.LimitDials && r.Verdict == "deny" && r.Status == 503
		})
	})
}
