package worker_test

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/worker"
)

// lines is a log that is counted.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}

// An actor that dials in a loop what is refused does not fill the worker's log.
func TestActorDoesNotFillTheLog(t *testing.T) {
	var log lines
	h := newHost(t, newRun(t), func(o *worker.Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	h.activate("demo/a")
	const dials, aSecond = 300, 10
	began := time.Now()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range dials / 4 {
				_ = h.dial("demo/a", "tcp", "203.0.113.7:25")
			}
		})
	}
	wg.Wait()
	if n := h.Counts().Failed.Load(); n != dials {
		t.Errorf("%d refusals were counted, not %d", n, dials)
	}
	if n := log.count("was not carried"); n < 1 || n > aSecond*int(1+time.Since(began).Seconds()) {
		t.Errorf("%d lines for %d refusals in %s", n, dials, time.Since(began))
	}
}
