//go:build linux

package soak_test

import (
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"
)

// failure is one thing that must not happen.
type failure struct {
	at   time.Time
	kind string // of few different ones, for the table
	text string
	id   string // request id, to find it in the access log; may be empty
}

// report collects what happened, from all goroutines.
type report struct {
	began time.Time

	answered, tls, dials, asked     atomic.Int64 // requests; those over TLS; connections; connections the gateway asked to close
	streams, events, uploads, bytes atomic.Int64 // ended well
	answered2, replays              atomic.Int64 // over HTTP/2; requests sent again after the gateway had refused to look at them
	longestGap                      atomic.Int64 // between two events of a stream, ns
	latency                         histogram

	mu       sync.Mutex // guards what follows
	failures []failure
	kinds    map[string]int
	timeline []failure
}

// maxFailures are kept whole; the others are only counted.
const maxFailures = 40

func newReport() *report { return &report{began: time.Now(), kinds: make(map[string]int)} }

func (r *report) fail(kind, id, format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kinds[kind]++
	if len(r.failures) < maxFailures {
		r.failures = append(r.failures, failure{time.Now(), kind, fmt.Sprintf(format, args...), id})
	}
}

// event notes what the test does to the gateway, to be shown beside failures.
func (r *report) event(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.timeline = append(r.timeline, failure{at: time.Now(), text: fmt.Sprintf(format, args...)})
}

func (r *report) failed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, k := range r.kinds {
		n += k
	}
	return n
}

func (r *report) gap(d time.Duration) {
	for {
		old := r.longestGap.Load()
		if int64(d) <= old || r.longestGap.CompareAndSwap(old, int64(d)) {
			return
		}
	}
}

// around is how far from a failure things are shown with it.
const around = 1500 * time.Millisecond

// print shows the table, and each failure with what was done and logged around it.
func (r *report) print(t *testing.T, rows [][2]string, processLog, accessLog string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range append(r.rows(), rows...) {
		fmt.Fprintf(w, "  %s\t%s\n", row[0], row[1])
	}
	_ = w.Flush()
	t.Logf("\n%s", &b)
	for _, f := range r.failures {
		t.Errorf("%s %s: %s\n%s%s%s", f.at.UTC().Format(time.RFC3339Nano), f.kind, f.text,
			r.near(f.at), logged(processLog, f.at), withID(accessLog, f.id))
	}
}

func (r *report) rows() [][2]string {
	took := time.Since(r.began)
	n := r.answered.Load()
	kinds := "0"
	if len(r.kinds) > 0 {
		var all []string
		for k, n := range r.kinds {
			all = append(all, fmt.Sprintf("%s: %d", k, n))
		}
		slices.Sort(all)
		kinds = strings.Join(all, ", ")
	}
	return [][2]string{
		{"failed", kinds},
		{"requests", fmt.Sprintf("%d (%d over TLS) in %.1f s, %.0f a second", n, r.tls.Load(), took.Seconds(), float64(n)/took.Seconds())},
		{"latency", fmt.Sprintf("p50 %s, p99 %s, longest %s", r.latency.quantile(0.5), r.latency.quantile(0.99), r.latency.quantile(1))},
		{"connections", fmt.Sprintf("%d opened, of which the gateway asked %d to close", r.dials.Load(), r.asked.Load())},
		{"HTTP/2", fmt.Sprintf("%d requests, %d of them sent again as refused unread", r.answered2.Load(), r.replays.Load())},
		{"streams", fmt.Sprintf("%d whole, %d events, longest silence %s", r.streams.Load(), r.events.Load(), time.Duration(r.longestGap.Load()).Round(time.Millisecond))},
		{"uploads", fmt.Sprintf("%d whole, %d MiB", r.uploads.Load(), r.bytes.Load()>>20)},
	}
}

func (r *report) near(at time.Time) string {
	var b strings.Builder
	for _, e := range r.timeline {
		if d := e.at.Sub(at); d.Abs() < around {
			fmt.Fprintf(&b, "    %+.3f s  %s\n", d.Seconds(), e.text)
		}
	}
	return b.String()
}

// logged finds the lines of the process log around a time.
func logged(log string, at time.Time) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		_, rest, ok := strings.Cut(line, `"time":"`)
		if !ok {
			if strings.Contains(line, "panic") || strings.HasPrefix(line, "WARNING: DATA RACE") {
				b.WriteString("    log: " + line)
			}
			continue
		}
		text, _, _ := strings.Cut(rest, `"`)
		when, err := time.Parse(time.RFC3339Nano, text)
		if err == nil && when.Sub(at).Abs() < around && b.Len() < 4096 {
			b.WriteString("    log: " + line)
		}
	}
	return b.String()
}

// withID finds the line of a request in the access log.
func withID(file, id string) string {
	if id == "" {
		return ""
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "    access: " + err.Error() + "\n"
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, `"`+id+`"`) {
			return "    access: " + line
		}
	}
	return "    access: no line of " + id + "\n"
}

// histogram counts durations in steps of an eighth of their size.
type histogram struct{ counts [64 * 8]atomic.Int64 }

func (h *histogram) add(d time.Duration) {
	n := uint64(max(d.Microseconds(), 8))
	exp := bits.Len64(n) - 1
	h.counts[exp*8+int(n>>(exp-3)&7)].Add(1)
}

func (h *histogram) quantile(q float64) time.Duration {
	total := int64(0)
	for i := range h.counts {
		total += h.counts[i].Load()
	}
	seen := int64(0)
	for i := range h.counts {
		seen += h.counts[i].Load()
		if seen > 0 && float64(seen) >= q*float64(total) {
			return time.Duration(uint64(8+i%8)<<(i/8)>>3) * time.Microsecond
		}
	}
	return 0
}
