package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// problem is an error as OpenAI's API words it.
type problem struct {
	status  int
	Message string `json:"message"`
	Type    string `json:"type"`
	Param   string `json:"-"`
	Code    string `json:"-"`
}

func (p *problem) Error() string { return p.Message }

// MarshalJSON writes absent members as null, as the original does.
func (p *problem) MarshalJSON() ([]byte, error) {
	optional := func(s string) *string {
		if s == "" {
			return nil
		}
		return &s
	}
	return json.Marshal(struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	}{p.Message, p.Type, optional(p.Param), optional(p.Code)})
}

func invalid(param, format string, args ...any) *problem {
	return &problem{
		status: http.StatusBadRequest, Type: "invalid_request_error",
		Param: param, Message: fmt.Sprintf(format, args...),
	}
}

// refuse answers with an error envelope and counts the request as refused.
func (b *Backend) refuse(w http.ResponseWriter, err error) {
	var p *problem
	if !errors.As(err, &p) {
		p = invalid("", "%v", err)
	}
	b.mu.Lock()
	b.stats.Refused++
	b.mu.Unlock()
	writeJSON(w, p.status, struct {
		Error *problem `json:"error"`
	}{p})
}

func (b *Backend) checkModel(id string) error {
	switch {
	case id == "":
		return invalid("model", "you must provide a model parameter")
	case !slices.Contains(b.options.Models, id):
		return &problem{
			status: http.StatusNotFound, Type: "invalid_request_error", Param: "model", Code: "model_not_found",
			Message: fmt.Sprintf("The model %q does not exist", id),
		}
	}
	return nil
}

// readJSON decodes the whole body. It must be read to its end before an answer
// is generated: only then does the server notice that a client goes.
func readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	media, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || media != "application/json" {
		return &problem{
			status: http.StatusUnsupportedMediaType, Type: "invalid_request_error", Code: "unsupported_media_type",
			Message: "Content-Type must be application/json",
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return &problem{
			status: http.StatusRequestEntityTooLarge, Type: "invalid_request_error", Code: "request_too_large",
			Message: fmt.Sprintf("the request body is larger than %d bytes", maxBody),
		}
	}
	if err != nil {
		return invalid("", "reading the request body: %v", err)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return invalid("", "the request body is not the JSON object expected here: %v", err)
	}
	return nil
}

// pacing is the request member `benchmark`: how this one answer is generated.
type pacing struct {
	FirstTokenDelayMS *int64 `json:"first_token_delay_ms"`
	TokenIntervalMS   *int64 `json:"token_interval_ms"`
	TokenCount        *int   `json:"token_count"`
}

// generationRequest holds what chat and text completions have in common.
// Sampling parameters are accepted and have no effect.
type generationRequest struct {
	Model               string  `json:"model"`
	Stream              bool    `json:"stream"`
	N                   *int    `json:"n"`
	MaxTokens           *int    `json:"max_tokens"`
	MaxCompletionTokens *int    `json:"max_completion_tokens"`
	Benchmark           *pacing `json:"benchmark"`
	StreamOptions       *struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// Request headers that say the same as the member benchmark, for clients whose
// body is not theirs to change. The body wins.
const (
	headerFirstToken = "X-Demo-First-Token-Ms"
	headerInterval   = "X-Demo-Interval-Ms"
	headerTokens     = "X-Demo-Tokens"
)

// plan is how an answer will be generated, all limits checked.
type plan struct {
	first, pace time.Duration
	count       int // tokens wanted; 0 means the whole text
	limit       int // at most this many tokens; 0 means no limit
}

func (b *Backend) plan(r *http.Request, g *generationRequest) (plan, error) {
	p := plan{first: b.options.FirstToken, pace: b.options.Pace}
	if g.N != nil && *g.N != 1 {
		return p, invalid("n", "this demo generates one choice at a time: n must be 1")
	}
	if g.StreamOptions != nil && !g.Stream {
		return p, invalid("stream_options", "stream_options is only allowed when stream is true")
	}
	for name, limit := range map[string]*int{"max_tokens": g.MaxTokens, "max_completion_tokens": g.MaxCompletionTokens} {
		if limit == nil {
			continue
		}
		if *limit < 1 {
			return p, invalid(name, "%s must be at least 1", name)
		}
		if p.limit == 0 || *limit < p.limit {
			p.limit = *limit
		}
	}
	wish, err := pacingFrom(r.Header, g.Benchmark)
	if err != nil {
		return p, err
	}
	if p.first, err = delay("first_token_delay_ms", wish.FirstTokenDelayMS, p.first); err != nil {
		return p, err
	}
	if p.pace, err = delay("token_interval_ms", wish.TokenIntervalMS, p.pace); err != nil {
		return p, err
	}
	if wish.TokenCount != nil {
		if *wish.TokenCount < 1 || *wish.TokenCount > maxTokens {
			return p, invalid("benchmark", "token_count must be between 1 and %d", maxTokens)
		}
		p.count = *wish.TokenCount
	}
	return p, nil
}

// pacingFrom adds the headers to what the body says.
func pacingFrom(h http.Header, body *pacing) (pacing, error) {
	var out pacing
	if body != nil {
		out = *body
	}
	number := func(name string) (*int64, error) {
		text := h.Get(name)
		if text == "" {
			return nil, nil
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, invalid("", "header %s must be a whole number", name)
		}
		return &n, nil
	}
	first, err := number(headerFirstToken)
	if err != nil {
		return out, err
	}
	interval, err := number(headerInterval)
	if err != nil {
		return out, err
	}
	tokens, err := number(headerTokens)
	if err != nil {
		return out, err
	}
	if out.FirstTokenDelayMS == nil {
		out.FirstTokenDelayMS = first
	}
	if out.TokenIntervalMS == nil {
		out.TokenIntervalMS = interval
	}
	if out.TokenCount == nil && tokens != nil {
		// Clamped instead of converted blindly: the range check comes later.
		n := int(min(max(*tokens, 0), maxTokens+1))
		out.TokenCount = &n
	}
	return out, nil
}

func delay(name string, ms *int64, otherwise time.Duration) (time.Duration, error) {
	if ms == nil {
		return otherwise, nil
	}
	if *ms < 0 || *ms > maxDelay.Milliseconds() {
		return 0, invalid("benchmark", "%s must be between 0 and %d", name, maxDelay.Milliseconds())
	}
	return time.Duration(*ms) * time.Millisecond, nil
}

// texts decodes a member that is a string, a list of strings, a list of token
// numbers, or a list of such lists. Token numbers become words of their own.
func texts(raw json.RawMessage) ([]string, error) {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}, nil
	}
	var many []string
	if json.Unmarshal(raw, &many) == nil && len(many) > 0 {
		return many, nil
	}
	var tokens []int64
	if json.Unmarshal(raw, &tokens) == nil && len(tokens) > 0 {
		return []string{joinNumbers(tokens)}, nil
	}
	var lists [][]int64
	if json.Unmarshal(raw, &lists) == nil && len(lists) > 0 {
		out := make([]string, len(lists))
		for i, l := range lists {
			out[i] = joinNumbers(l)
		}
		return out, nil
	}
	return nil, errors.New("must be a string, a list of strings, or lists of token numbers, and not empty")
}

func joinNumbers(numbers []int64) string {
	words := make([]string, len(numbers))
	for i, n := range numbers {
		words[i] = strconv.FormatInt(n, 10)
	}
	return strings.Join(words, " ")
}
