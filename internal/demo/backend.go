// Package demo is a small OpenAI-compatible model server that has no model: the
// backend behind `sluice demo`, and a well-behaved peer for tests. It owns the
// answers it makes up and counters of what became of them. A Backend lives as
// long as the server it is mounted in and starts no goroutine. It is an ordinary
// net/http handler and must know nothing of the gateway in front of it: whatever
// it observes, any backend would.
package demo

import (
	"encoding/json"
	"net/http"
	"sync"
	"time"
)

// BackendHeader is the response header that names the answering backend, so that
// balancing can be seen from outside.
const BackendHeader = "X-Demo-Backend"

// Limits of one request; more is refused with status 400 or 413.
const (
	maxBody   = 8 << 20          // bytes of a request body
	maxTokens = 4096             // tokens of one answer
	maxDelay  = 60 * time.Second // each delay a request may ask for
	maxInputs = 2048             // texts of one embeddings request
)

// Options describe a backend. The zero value is usable: one backend called
// "demo" that answers as fast as it can.
type Options struct {
	// Name is sent in BackendHeader and appears in the generated text; empty
	// means "demo".
	Name string
	// Models are the ids that /v1/models lists. Other ids are refused with 404.
	// Empty means "demo-small" and "demo-large".
	Models []string
	// FirstToken is how long an answer waits before its first token. The head of
	// a streamed answer is sent before. Zero means not at all.
	FirstToken time.Duration
	// Pace is the pause between two tokens. Zero means none.
	Pace time.Duration
}

// Stats counts generations (chat and text completions) since the backend was
// made. Started is always Active + Completed + Cancelled.
type Stats struct {
	// Active are being generated now.
	Active int64 `json:"active"`
	// Started were accepted for generation.
	Started int64 `json:"started"`
	// Completed were sent to their end.
	Completed int64 `json:"completed"`
	// Cancelled were given up because the client had gone.
	Cancelled int64 `json:"cancelled"`
	// Tokens were generated, cancelled answers included.
	Tokens int64 `json:"tokens"`
	// Refused requests had an error in them and were never started.
	Refused int64 `json:"refused"`
	// LastCancelled is when the most recent departure was noticed; zero if never.
	LastCancelled time.Time `json:"last_cancelled,omitzero"`
}

// Backend answers the OpenAI routes. It is safe for concurrent use.
type Backend struct {
	options Options
	started time.Time
	mux     *http.ServeMux

	mu    sync.Mutex // guards what follows
	stats Stats
	next  uint64 // number of the next answer's id
}

// NewBackend returns a backend that serves:
//
//	GET  /health, /v1/models, /v1/models/{id}, /demo/stats
//	POST /v1/chat/completions, /v1/completions, /v1/embeddings
func NewBackend(o Options) *Backend {
	if o.Name == "" {
		o.Name = "demo"
	}
	if len(o.Models) == 0 {
		o.Models = []string{"demo-small", "demo-large"}
	}
	b := &Backend{options: o, started: time.Now(), mux: http.NewServeMux()}
	b.mux.HandleFunc("GET /health", b.serveHealth)
	b.mux.HandleFunc("GET /demo/stats", b.serveStats)
	b.mux.HandleFunc("GET /v1/models", b.serveModels)
	b.mux.HandleFunc("GET /v1/models/{id}", b.serveModel)
	b.mux.HandleFunc("POST /v1/chat/completions", b.serveChat)
	b.mux.HandleFunc("POST /v1/completions", b.serveText)
	b.mux.HandleFunc("POST /v1/embeddings", b.serveEmbeddings)
	b.mux.HandleFunc("/", b.serveUnknown)
	return b
}

// ServeHTTP implements http.Handler.
func (b *Backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set(BackendHeader, b.options.Name)
	b.mux.ServeHTTP(w, r)
}

// Stats returns the counters as they are now.
func (b *Backend) Stats() Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stats
}

// begin counts a generation in and returns its number.
func (b *Backend) begin() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Started++
	b.stats.Active++
	b.next++
	return b.next
}

// end counts a generation out.
func (b *Backend) end(tokens int, completed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Active--
	b.stats.Tokens += int64(tokens)
	if completed {
		b.stats.Completed++
		return
	}
	b.stats.Cancelled++
	b.stats.LastCancelled = time.Now()
}

func (b *Backend) serveHealth(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, struct {
		Status  string `json:"status"`
		Backend string `json:"backend"`
	}{"ok", b.options.Name})
}

func (b *Backend) serveStats(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, b.Stats())
}

// model is one entry of the model list.
type model struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
}

func (b *Backend) serveModels(w http.ResponseWriter, _ *http.Request) {
	list := struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{Object: "list"}
	for _, id := range b.options.Models {
		list.Data = append(list.Data, b.model(id))
	}
	writeJSON(w, http.StatusOK, list)
}

func (b *Backend) serveModel(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if p := b.checkModel(id); p != nil {
		b.refuse(w, p)
		return
	}
	writeJSON(w, http.StatusOK, b.model(id))
}

func (b *Backend) model(id string) model {
	return model{ID: id, Object: "model", Created: b.started.Unix(), OwnedBy: "sluice-demo"}
}

func (b *Backend) serveUnknown(w http.ResponseWriter, r *http.Request) {
	b.refuse(w, &problem{
		status: http.StatusNotFound, Type: "invalid_request_error", Code: "unknown_url",
		Message: "Unknown request URL: " + r.Method + " " + r.URL.Path,
	})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// The client may have gone; there is nobody left to tell.
	_, _ = w.Write(append(body, '\n'))
}
