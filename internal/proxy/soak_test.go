package proxy_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
)

// Random mixtures of well-formed exchanges on kept connections, with failing ones beside them: every answer belongs to
// its request, and in the end nothing is left.
func TestSoak(t *testing.T) {
	length := 3 * time.Second
	if testing.Short() {
		length = time.Second
	}
	inModes(t, func(t *testing.T, m mode) {
		t.Parallel()
		backends := []string{newBackend(t, chaos).addr, newBackend(t, chaos).addr, refusing(t)}
		g := newGateway(t, m, options{
			service: func(l *config.LoadBalancer) {
				l.RequestTimeout, l.StreamIdleTimeout, l.StreamTotalTimeout = 3*time.Second, 3*time.Second, 20*time.Second
				l.Transport.MaxIdle = 4
			},
			server: func(s *http1.Settings) { s.WriteIdleTimeout, s.BodyIdleTimeout = 3*time.Second, 3*time.Second },
			before: func(x *exchange.Exchange) {
				if strings.HasSuffix(string(x.Request.Path), "panic") {
					x.FilterResponse(filter{"panic"})
				}
			},
		}, backends...)
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		end := time.Now().Add(length)
		var all sync.WaitGroup
		var good, bad atomic.Int64
		more := func() bool { // on a busy machine it takes longer until something has been seen
			now := time.Now()
			return now.Before(end) || now.Before(end.Add(patience)) && (good.Load() < 100 || bad.Load() < 10)
		}
		for w := range 8 {
			all.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(w)))
				for more() {
					c := g.dialQuietly()
					for range 1 + r.IntN(20) {
						if err := echoOnce(c, r); err != nil {
							t.Errorf("worker %d: %v", w, err)
							break
						}
						good.Add(1)
					}
					c.Close()
				}
			})
		}
		kinds := failures()
		for w := range 8 {
			all.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(100+w)))
				for more() {
					kinds[r.IntN(len(kinds))](g.dialQuietly())
					bad.Add(1)
				}
			})
		}
		all.Wait()
		t.Logf("%d exchanges were right, %d failed as they should", good.Load(), bad.Load())
		eventually(t, patience, "all is recorded", func() bool { return int64(g.recorded()) >= good.Load()+bad.Load() })
		if good.Load() < 100 || bad.Load() < 10 {
			t.Errorf("too few exchanges")
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, r := range g.records {
			if r.Outcome == exchange.OutcomeNone || r.Outcome != exchange.OutcomeOK && r.Outcome != exchange.OutcomeUpgraded && r.Code == "" {
				t.Errorf("%+v", r)
			}
		}
	})
}

// dialQuietly is dial for goroutines: what fails shows in the answers.
func (g *gateway) dialQuietly() *wire {
	c := g.dial(g.t)
	c.fail = func(string, ...any) {}
	return c
}

// echoOnce sends a body of random size, framing and cuts and wants it back.
func echoOnce(c *wire, r *rand.Rand) error {
	_ = c.SetDeadline(time.Now().Add(patience))
	size := 0
	switch r.IntN(4) {
	case 0:
	case 1:
		size = r.IntN(100)
	case 2:
		size = r.IntN(10_000)
	case 3:
		size = r.IntN(300_000)
	}
	body := strings.Repeat(fmt.Sprintf("%08x", r.Uint32()), size/8+1)[:size]
	var out strings.Builder
	out.WriteString("PUT /echo HTTP/1.1\r\nHost: a\r\n")
	if r.IntN(2) == 0 {
		fmt.Fprintf(&out, "Content-Length: %d\r\n\r\n%s", size, body)
	} else {
		out.WriteString("Transfer-Encoding: chunked\r\n\r\n")
		for rest := body; rest != ""; {
			n := min(len(rest), 1+r.IntN(20_000))
			out.WriteString(chunk(rest[:n]))
			rest = rest[n:]
		}
		out.WriteString(lastChunk)
	}
	whole, cuts := out.String(), r.IntN(4)
	at := make([]int, cuts)
	for i := range at {
		at[i] = r.IntN(len(whole) + 1)
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		from := 0
		for _, to := range append(at, len(whole)) {
			if to > from {
				if _, err := io.WriteString(c.Conn, whole[from:to]); err != nil {
					return
				}
				from = to
			}
		}
	}()
	m, err := c.read(false)
	<-sent
	if err != nil || m.status() != "200" || m.body != body {
		return fmt.Errorf("PUT of %d bytes: %q, %d bytes back, %v", size, m.line, len(m.body), err)
	}
	return nil
}
