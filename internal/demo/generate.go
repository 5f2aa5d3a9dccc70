package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// usage counts tokens; here a token is a word.
type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

// answer is a response body or one chunk of a streamed one. Choices differ
// between the two routes. Usage is raw because absent, null and an object all
// mean something.
type answer struct {
	ID                string          `json:"id"`
	Object            string          `json:"object"`
	Created           int64           `json:"created"`
	Model             string          `json:"model"`
	SystemFingerprint string          `json:"system_fingerprint"`
	Choices           any             `json:"choices"`
	Usage             json.RawMessage `json:"usage,omitempty"`
}

// shape is what tells the two routes apart.
type shape struct {
	idPrefix    string
	object      string                        // of a whole answer
	chunkObject string                        // of a streamed chunk
	opening     any                           // choices of the chunk before the first token; nil for none
	delta       func(token string) any        // choices of a chunk with a token
	last        func(finish string) any       // choices of the chunk that says why it ended
	whole       func(text, finish string) any // choices of a whole answer
}

// generation is one answer being made.
type generation struct {
	shape        *shape
	plan         plan
	model        string
	prompt       string // what is echoed
	promptTokens int
	stream       bool
	includeUsage bool
}

// generate makes the answer, waits as planned, and stops at once when the
// client goes.
func (b *Backend) generate(w http.ResponseWriter, r *http.Request, g *generation) {
	number := b.begin()
	sent, completed := 0, false
	defer func() { b.end(sent, completed) }()

	tokens, finish := compose(b.options.Name, g.prompt, g.plan)
	head := answer{
		ID:      fmt.Sprintf("%s-%s-%08d", g.shape.idPrefix, b.options.Name, number),
		Created: time.Now().Unix(), Model: g.model, SystemFingerprint: "fp_sluice_demo",
	}
	total := usage{g.promptTokens, len(tokens), g.promptTokens + len(tokens)}
	if g.stream {
		s := &stream{w: w, control: http.NewResponseController(w), head: head, g: g}
		sent, completed = s.run(r.Context(), tokens, finish, total)
		return
	}
	wait := g.plan.first
	for range tokens {
		if pause(r.Context(), wait) != nil {
			return
		}
		sent++
		wait = g.plan.pace
	}
	completed = true
	head.Object = g.shape.object
	head.Choices = g.shape.whole(strings.Join(tokens, ""), finish)
	head.Usage = total.raw()
	writeJSON(w, http.StatusOK, head)
}

func (u usage) raw() json.RawMessage {
	text, err := json.Marshal(u)
	if err != nil {
		return nil // three integers cannot fail to marshal
	}
	return text
}

// stream writes one answer as server-sent events.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	head    answer
	g       *generation
}

// run returns how many tokens were written, and whether the answer was sent to
// its end.
func (s *stream) run(ctx context.Context, tokens []string, finish string, total usage) (sent int, completed bool) {
	h := s.w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	s.w.WriteHeader(http.StatusOK)
	if s.control.Flush() != nil {
		return 0, false
	}
	s.head.Object = s.g.shape.chunkObject
	if s.g.includeUsage {
		s.head.Usage = json.RawMessage("null")
	}
	wait := s.g.plan.first
	for i, token := range tokens {
		if pause(ctx, wait) != nil {
			return i, false
		}
		if i == 0 && s.g.shape.opening != nil && s.chunk(s.g.shape.opening) != nil {
			return i, false
		}
		if s.chunk(s.g.shape.delta(token)) != nil {
			return i, false
		}
		wait = s.g.plan.pace
	}
	sent = len(tokens)
	if s.chunk(s.g.shape.last(finish)) != nil {
		return sent, false
	}
	if s.g.includeUsage {
		s.head.Usage = total.raw()
		if s.chunk([]struct{}{}) != nil {
			return sent, false
		}
	}
	return sent, s.event([]byte("[DONE]")) == nil
}

func (s *stream) chunk(choices any) error {
	c := s.head
	c.Choices = choices
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return s.event(data)
}

// event writes one event and flushes it: a token must be on the wire before the
// next one is waited for.
func (s *stream) event(data []byte) error {
	line := make([]byte, 0, len("data: \n\n")+len(data))
	line = append(line, "data: "...)
	line = append(line, data...)
	line = append(line, "\n\n"...)
	if _, err := s.w.Write(line); err != nil {
		return err
	}
	return s.control.Flush()
}

// pause waits for d or until the client has gone, which is its error.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
