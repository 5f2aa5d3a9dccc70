package dev_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/dev"
)

// echo is the actor's program, in the test.
type echo struct {
	t  *testing.T
	at string
}

func newEcho(t *testing.T) *echo {
	t.Helper()
	t.Setenv("ATE_ATESPACE", "demo")
	t.Setenv("ATE_ACTOR_NAME", "a1")
	s := httptest.NewServer(dev.NewEcho().Handler())
	t.Cleanup(s.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return &echo{t, s.URL}
}

// ask sends a request and reads an answer in JSON, if it is 200.
func (e *echo) ask(method, path, body string, into any) int {
	e.t.Helper()
	r, err := http.NewRequestWithContext(e.t.Context(), method, e.at+path, strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	if resp.StatusCode == http.StatusOK && into != nil {
		if err := json.Unmarshal(text, into); err != nil {
			e.t.Fatalf("%s: %v", text, err)
		}
	}
	return resp.StatusCode
}

func TestEchoRemembers(t *testing.T) {
	e := newEcho(t)
	var first, second dev.EchoState
	e.ask("GET", "/", "", &first)
	e.ask("GET", "/", "", &second)
	if first.Actor != "demo/a1" || first.Count != 1 || second.Count != 2 || !first.Started.Equal(second.Started) || first.Started.IsZero() {
		t.Errorf("%+v, then %+v", first, second)
	}
	if got := e.ask("GET", "/healthz", "", nil); got != http.StatusOK {
		t.Error(got)
	}
	if got := e.ask("GET", "/other", "", nil); got != http.StatusNotFound {
		t.Error(got)
	}
}

// Work takes its time, and is counted by id also when it comes twice.
func TestEchoWork(t *testing.T) {
	e := newEcho(t)
	began := time.Now()
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			var answer struct{ Actor, ID string }
			id := fmt.Sprintf("post-%d", i%10)
			if got := e.ask("POST", "/work?id="+id, "", &answer); got != http.StatusOK || answer.ID != id || answer.Actor != "demo/a1" {
				t.Errorf("%d %+v", got, answer)
			}
		})
	}
	all.Wait()
	if took := time.Since(began); took < 50*time.Millisecond {
		t.Errorf("after %s", took)
	}
	seen := map[string]int{}
	e.ask("GET", "/seen", "", &seen)
	if len(seen) != 10 || seen["post-3"] != 2 {
		t.Error(seen)
	}
	for _, bad := range []string{"/work", "/work?id=" + strings.Repeat("x", 101)} {
		if got := e.ask("POST", bad, "", nil); got != http.StatusBadRequest {
			t.Errorf("%s: %d", bad, got)
		}
	}
}

func TestEchoSlow(t *testing.T) {
	e := newEcho(t)
	var st dev.EchoState
	if got := e.ask("GET", "/slow?for=1ms", "", &st); got != http.StatusOK || st.Actor != "demo/a1" {
		t.Errorf("%d %+v", got, st)
	}
	for _, bad := range []string{"", "x", "-1s", "61s"} {
		if got := e.ask("GET", "/slow?for="+bad, "", nil); got != http.StatusBadRequest {
			t.Errorf("%q: %d", bad, got)
		}
	}
	e.ask("GET", "/", "", &st)
	if st.Busy != 0 {
		t.Errorf("%+v", st)
	}
}

func TestEchoRuns(t *testing.T) {
	e := newEcho(t)
	for _, c := range []struct {
		name, body string
		code       int
		out        string
	}{
		{"a program", `["echo","one","two"]`, 0, "one two\n"},
		{"one that fails", `["sh","-c","echo no; exit 3"]`, 3, "no\n"},
		{"one that is not there", `["no-such-program"]`, -1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out dev.EchoRun
			if got := e.ask("POST", "/run", c.body, &out); got != http.StatusOK || out.Code != c.code || out.Out != c.out {
				t.Errorf("%d %+v", got, out)
			}
		})
	}
	var out dev.EchoRun
	if e.ask("POST", "/run", `["sh","-c","yes | head -c 100000"]`, &out); out.Code != 0 || len(out.Out) != 64<<10 {
		t.Errorf("exit %d, %d bytes", out.Code, len(out.Out))
	}
	for _, bad := range []string{"", "{}", "[]", `[1]`, `["` + string(bytes.Repeat([]byte("x"), 70_000)) + `"]`} {
		if got := e.ask("POST", "/run", bad, nil); got != http.StatusBadRequest {
			t.Errorf("%.20q: %d", bad, got)
		}
	}
}
