package dev

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"time"
)

// Bounds of the demonstration's actor.
const (
	echoSeen   = 100_000          // ids of work that it remembers
	echoRun    = 15 * time.Second // a program that it executes
	echoOutput = 64 << 10         // bytes of the output of one that are kept
	echoBody   = 64 << 10         // bytes of a request
)

// Echo is the program of the demonstration's actors: a web server whose memory shows whether it is still the same. It is meant to run
// confined, since whoever reaches it may have it execute programs.
type Echo struct {
	started time.Time

	mu    sync.Mutex // guards the rest
	count int
	busy  int
	seen  map[string]int
}

// EchoState is what an actor answers to GET /.
type EchoState struct {
	Actor   string    `json:"actor"`
	Started time.Time `json:"started"` // of its process
	Count   int       `json:"count"`   // requests of this kind so far
	Busy    int       `json:"busy"`    // slow requests under way
}

// EchoRun is what came of a program that an actor has executed.
type EchoRun struct {
	Code   int    `json:"code"` // -1 when it was not started, or was ended
	Out    string `json:"out"`
	Err    string `json:"err"`
	Millis int64  `json:"millis"`
}

// NewEcho makes one, with nothing in its memory.
func NewEcho() *Echo { return &Echo{started: time.Now(), seen: map[string]int{}} }

// Handler serves GET / (who it is, counted), GET /healthz, POST /work?id=ID (50 to 150 ms of it, counted by id), GET /slow?for=DURATION, GET /seen
// (the counts), and POST /run with a JSON list: a program and its arguments, to be executed.
func (e *Echo) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /{$}", func(rw http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		e.count++
		n, busy := e.count, e.busy
		e.mu.Unlock()
		respond(rw, EchoState{Actor: echoName(), Started: e.started, Count: n, Busy: busy})
	})
	mux.HandleFunc("GET /seen", func(rw http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		defer e.mu.Unlock()
		respond(rw, e.seen)
	})
	mux.HandleFunc("GET /slow", func(rw http.ResponseWriter, r *http.Request) {
		d, err := time.ParseDuration(r.FormValue("for"))
		if err != nil || d < 0 || d > time.Minute {
			http.Error(rw, "for is not a duration of a minute at most", http.StatusBadRequest)
			return
		}
		e.occupy(1)
		defer e.occupy(-1)
		if rest(r.Context(), d) {
			respond(rw, EchoState{Actor: echoName(), Started: e.started})
		}
	})
	mux.HandleFunc("POST /work", e.work)
	mux.HandleFunc("POST /run", e.run)
	return mux
}

// echoName is what the actor is called, by its environment.
func echoName() string { return os.Getenv("ATE_ATESPACE") + "/" + os.Getenv("ATE_ACTOR_NAME") }

func (e *Echo) occupy(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.busy += n
}

func respond(rw http.ResponseWriter, v any) {
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(v)
}

// rest waits, and reports whether nobody has left meanwhile.
func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// work counts an id, then takes its time, whether or not somebody still waits.
func (e *Echo) work(rw http.ResponseWriter, r *http.Request) {
	id := r.FormValue("id")
	e.mu.Lock()
	full := len(e.seen) >= echoSeen || id == "" || len(id) > 100
	if !full {
		e.seen[id]++
	}
	e.mu.Unlock()
	if full {
		http.Error(rw, "no id, a long one, or too many of them", http.StatusBadRequest)
		return
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(id))
	rest(context.WithoutCancel(r.Context()), 50*time.Millisecond+time.Duration(h.Sum32()%101)*time.Millisecond)
	respond(rw, map[string]string{"actor": echoName(), "id": id})
}

// run executes a program as the actor.
func (e *Echo) run(rw http.ResponseWriter, r *http.Request) {
	var args []string
	if err := json.NewDecoder(http.MaxBytesReader(rw, r.Body, echoBody)).Decode(&args); err != nil || len(args) == 0 {
		http.Error(rw, "not a JSON list of a program and its arguments", http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), echoRun)
	defer cancel()
	out, errs := &clipped{}, &clipped{}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir, cmd.WaitDelay = out, errs, "/tmp", time.Second
	began := time.Now()
	err := cmd.Run()
	answer := EchoRun{Code: -1, Out: out.kept.String(), Err: errs.kept.String(), Millis: time.Since(began).Milliseconds()}
	if exit := (*exec.ExitError)(nil); err == nil || errors.As(err, &exit) {
		answer.Code = cmd.ProcessState.ExitCode()
	} else {
		answer.Err += fmt.Sprintln(err)
	}
	respond(rw, answer)
}

// clipped keeps the beginning of what is written to it.
type clipped struct{ kept bytes.Buffer }

// Write keeps what there is room for, and takes all of it.
func (c *clipped) Write(p []byte) (int, error) {
	room := max(echoOutput-c.kept.Len(), 0)
	c.kept.Write(p[:min(room, len(p))])
	return len(p), nil
}
