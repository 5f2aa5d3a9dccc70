package demo_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/demo"
)

const hello = `{"model":"demo-small","messages":[{"role":"user","content":"hello"}]`

func post(ctx context.Context, path, body string) *http.Request {
	req := httptest.NewRequestWithContext(ctx, "POST", path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	return req
}

// Every token waits for its time: the first, then one interval each.
func TestPace(t *testing.T) {
	defaults := demo.Options{FirstToken: 2 * time.Second, Pace: 300 * time.Millisecond}
	for _, c := range []struct {
		name, members string
		header        http.Header
		want          time.Duration
	}{
		{"options", `,"benchmark":{"token_count":3}`, nil, 2600 * time.Millisecond},
		{"body", `,"benchmark":{"first_token_delay_ms":50,"token_interval_ms":10,"token_count":32}`, nil, 360 * time.Millisecond},
		{"headers", ``, http.Header{"X-Demo-First-Token-Ms": {"5"}, "X-Demo-Interval-Ms": {"1"}, "X-Demo-Tokens": {"2"}}, 6 * time.Millisecond},
		{"body before header", `,"benchmark":{"token_count":1}`, http.Header{"X-Demo-Tokens": {"9"}}, 2 * time.Second},
		{"limit", `,"max_completion_tokens":2,"max_tokens":4`, nil, 2300 * time.Millisecond},
		{"no waiting", `,"benchmark":{"first_token_delay_ms":0,"token_interval_ms":0}`, nil, 0},
	} {
		for _, stream := range []string{`,"stream":false}`, `,"stream":true}`} {
			t.Run(c.name+stream, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := demo.NewBackend(defaults)
					req := post(t.Context(), "/v1/chat/completions", hello+c.members+stream)
					for name, values := range c.header {
						req.Header[name] = values
					}
					w := httptest.NewRecorder()
					begin := time.Now()
					b.ServeHTTP(w, req)
					if w.Code != 200 || w.Body.Len() == 0 {
						t.Fatalf("status %d: %s", w.Code, w.Body)
					}
					if took := time.Since(begin); took != c.want {
						t.Errorf("took %v, want %v", took, c.want)
					}
				})
			})
		}
	}
}

func TestBadPaceHeader(t *testing.T) {
	for _, name := range []string{"X-Demo-First-Token-Ms", "X-Demo-Interval-Ms", "X-Demo-Tokens"} {
		for _, value := range []string{"soon", "-1", "99999999999"} {
			req := post(t.Context(), "/v1/chat/completions", hello+"}")
			req.Header.Set(name, value)
			w := httptest.NewRecorder()
			demo.NewBackend(demo.Options{}).ServeHTTP(w, req)
			if w.Code != 400 {
				t.Errorf("%s: %s gives status %d", name, value, w.Code)
			}
		}
	}
}

// A client that goes is noticed at once, in the middle of an hour's pause, and
// what it had read before proves that tokens are flushed one by one.
func TestClientGoes(t *testing.T) {
	for _, c := range []struct {
		name, members string
		reads         int // events to read before going
	}{
		{"between two tokens", `,"stream":true`, 2},
		{"before the first token", `,"stream":true,"benchmark":{"first_token_delay_ms":60000}`, 0},
		{"before a whole answer", `,"stream":false,"benchmark":{"first_token_delay_ms":60000}`, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, url := start(t, demo.Options{Pace: time.Hour})
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			req, err := http.NewRequestWithContext(ctx, "POST", url+"/v1/chat/completions", strings.NewReader(hello+c.members+"}"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if c.reads < 0 {
				go func() {
					waitFor(t, b, func(s demo.Stats) bool { return s.Active == 1 })
					leave()
				}()
				if res, err := http.DefaultClient.Do(req); err == nil {
					res.Body.Close()
					t.Error("an answer came before its time")
				}
			} else {
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				lines := bufio.NewScanner(res.Body)
				for n := 0; n < c.reads && lines.Scan(); {
					if strings.HasPrefix(lines.Text(), "data: ") {
						n++
					}
				}
				if s := b.Stats(); s.Active != 1 || s.Cancelled != 0 {
					t.Errorf("while streaming: %+v", s)
				}
			}
			left := time.Now()
			leave()
			waitFor(t, b, func(s demo.Stats) bool { return s.Active == 0 })
			if s := b.Stats(); s.Cancelled != 1 || s.Completed != 0 || s.LastCancelled.Sub(left) > time.Second {
				t.Errorf("after the client left at %v: %+v", left, s)
			}
		})
	}
}

// waitFor polls the counters until they are as wanted, for at most twenty seconds.
func waitFor(t *testing.T, b *demo.Backend, ok func(demo.Stats) bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); <-tick.C {
		if ok(b.Stats()) {
			return
		}
	}
	t.Errorf("the counters stayed at %+v", b.Stats())
}

func TestStatsAddUp(t *testing.T) {
	b, url := start(t, demo.Options{})
	const workers, each = 8, 10
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				call(t, "POST", url+"/v1/chat/completions", hello+`,"stream":true,"benchmark":{"token_count":3}}`)
			}
		})
	}
	wg.Wait()
	waitFor(t, b, func(s demo.Stats) bool { return s.Active == 0 })
	_, body := call(t, "GET", url+"/demo/stats", "")
	var got demo.Stats
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	want := demo.Stats{Started: workers * each, Completed: workers * each, Tokens: 3 * workers * each}
	if got != want {
		t.Errorf("stats %+v, want %+v", got, want)
	}
	if strings.Contains(string(body), "last_cancelled") {
		t.Errorf("nothing was cancelled: %s", body)
	}
}
