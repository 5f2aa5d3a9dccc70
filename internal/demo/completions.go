package demo

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
)

type chatRequest struct {
	generationRequest
	Messages []struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	} `json:"messages"`
}

type textRequest struct {
	generationRequest
	Prompt json.RawMessage `json:"prompt"`
}

// Choices of a chat answer: whole, and as the difference to what came before.
type (
	chatMessage struct {
		Role    string  `json:"role"`
		Content string  `json:"content"`
		Refusal *string `json:"refusal"`
	}
	chatChoice struct {
		Index        int         `json:"index"`
		Message      chatMessage `json:"message"`
		Logprobs     *struct{}   `json:"logprobs"`
		FinishReason string      `json:"finish_reason"`
	}
	chatDelta struct {
		Role    string  `json:"role,omitempty"`
		Content *string `json:"content,omitempty"`
	}
	chatChunkChoice struct {
		Index        int       `json:"index"`
		Delta        chatDelta `json:"delta"`
		Logprobs     *struct{} `json:"logprobs"`
		FinishReason *string   `json:"finish_reason"`
	}
	textChoice struct {
		Text         string    `json:"text"`
		Index        int       `json:"index"`
		Logprobs     *struct{} `json:"logprobs"`
		FinishReason *string   `json:"finish_reason"`
	}
)

var chatShape = shape{
	idPrefix: "chatcmpl", object: "chat.completion", chunkObject: "chat.completion.chunk",
	opening: []chatChunkChoice{{Delta: chatDelta{Role: "assistant", Content: new(string)}}},
	delta: func(token string) any {
		return []chatChunkChoice{{Delta: chatDelta{Content: &token}}}
	},
	last: func(finish string) any {
		return []chatChunkChoice{{FinishReason: &finish}}
	},
	whole: func(text, finish string) any {
		return []chatChoice{{Message: chatMessage{Role: "assistant", Content: text}, FinishReason: finish}}
	},
}

var textShape = shape{
	idPrefix: "cmpl", object: "text_completion", chunkObject: "text_completion",
	delta: func(token string) any { return []textChoice{{Text: token}} },
	last:  func(finish string) any { return []textChoice{{FinishReason: &finish}} },
	whole: func(text, finish string) any { return []textChoice{{Text: text, FinishReason: &finish}} },
}

func (b *Backend) serveChat(w http.ResponseWriter, r *http.Request) {
	var req chatRequest
	g, err := b.prepare(w, r, &req, &req.generationRequest)
	if err != nil {
		b.refuse(w, err)
		return
	}
	g.shape = &chatShape
	if len(req.Messages) == 0 {
		b.refuse(w, invalid("messages", "messages must hold at least one message"))
		return
	}
	for _, m := range req.Messages {
		text, err := messageText(m.Content)
		if err != nil || m.Role == "" {
			b.refuse(w, invalid("messages", "every message needs a role, and content that is text or a list of parts"))
			return
		}
		g.promptTokens += len(strings.Fields(text))
		if m.Role == "user" {
			g.prompt = text
		}
	}
	g.promptTokens = max(g.promptTokens, 1)
	b.generate(w, r, g)
}

func (b *Backend) serveText(w http.ResponseWriter, r *http.Request) {
	var req textRequest
	g, err := b.prepare(w, r, &req, &req.generationRequest)
	if err != nil {
		b.refuse(w, err)
		return
	}
	g.shape = &textShape
	prompts, err := texts(req.Prompt)
	if err != nil {
		b.refuse(w, invalid("prompt", "prompt %v", err))
		return
	}
	if len(prompts) > 1 {
		b.refuse(w, invalid("prompt", "this demo completes one prompt at a time"))
		return
	}
	g.prompt = prompts[0]
	g.promptTokens = countTokens(g.prompt)
	b.generate(w, r, g)
}

// prepare reads the body into request, of which common is the shared part, and
// checks the latter.
func (b *Backend) prepare(w http.ResponseWriter, r *http.Request, request any, common *generationRequest) (*generation, error) {
	if err := readJSON(w, r, request); err != nil {
		return nil, err
	}
	if err := b.checkModel(common.Model); err != nil {
		return nil, err
	}
	p, err := b.plan(r, common)
	if err != nil {
		return nil, err
	}
	return &generation{
		plan: p, model: common.Model, stream: common.Stream,
		includeUsage: common.StreamOptions != nil && common.StreamOptions.IncludeUsage,
	}, nil
}

// messageText returns the text of a message: a string, null (an assistant that
// only called tools), or the text parts of a list.
func messageText(raw json.RawMessage) (string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return "", nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text, nil
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if json.Unmarshal(raw, &parts) != nil {
		return "", errors.New("content is neither text nor a list of parts")
	}
	var all []string
	for _, p := range parts {
		if p.Type == "text" {
			all = append(all, p.Text)
		}
	}
	return strings.Join(all, " "), nil
}
