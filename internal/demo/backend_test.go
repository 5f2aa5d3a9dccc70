package demo_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/demo"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// start serves a backend on a real socket until the test ends.
func start(t *testing.T, o demo.Options) (*demo.Backend, string) {
	t.Helper()
	b := demo.NewBackend(o)
	s := httptest.NewServer(b)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		s.Close()
	})
	return b, s.URL
}

// call sends one JSON request and returns the answer with its body read.
func call(t *testing.T, method, url, body string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, text
}

// members decodes a JSON object and removes what differs from run to run.
func members(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	if created, ok := m["created"].(float64); !ok || created < 1e9 {
		t.Errorf("created is %v", m["created"])
	}
	delete(m, "created")
	return m
}

func TestModels(t *testing.T) {
	_, url := start(t, demo.Options{Name: "a"})
	res, body := call(t, "GET", url+"/v1/models", "")
	if got := res.Header.Get(demo.BackendHeader); got != "a" {
		t.Errorf("%s is %q", demo.BackendHeader, got)
	}
	var list struct {
		Object string
		Data   []struct{ ID, Object, OwnedBy string }
	}
	if err := json.Unmarshal(body, &list); err != nil {
		t.Fatal(err)
	}
	if list.Object != "list" || len(list.Data) != 2 || list.Data[0].ID != "demo-small" || list.Data[0].Object != "model" {
		t.Errorf("models: %s", body)
	}
	if _, body := call(t, "GET", url+"/v1/models/demo-large", ""); members(t, body)["id"] != "demo-large" {
		t.Errorf("one model: %s", body)
	}
	if res, body := call(t, "GET", url+"/health", ""); res.StatusCode != 200 || !bytes.Contains(body, []byte(`"ok"`)) {
		t.Errorf("health: %d %s", res.StatusCode, body)
	}
}

func TestChatCompletion(t *testing.T) {
	_, url := start(t, demo.Options{Name: "a"})
	res, body := call(t, "POST", url+"/v1/chat/completions", `{
		"model": "demo-small", "max_tokens": 9, "temperature": 0.2,
		"messages": [
			{"role": "system", "content": "be brief"},
			{"role": "user", "content": [{"type": "text", "text": "what is"}, {"type": "image_url"}, {"type": "text", "text": "a sluice?"}]}
		]}`)
	if got := res.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q", got)
	}
	want := map[string]any{
		"id": "chatcmpl-a-00000001", "object": "chat.completion", "model": "demo-small",
		"system_fingerprint": "fp_sluice_demo",
		"choices": []any{map[string]any{
			"index": 0.0, "logprobs": nil, "finish_reason": "length",
			"message": map[string]any{
				"role": "assistant", "refusal": nil,
				"content": "This is backend a. You wrote: “what is a",
			},
		}},
		"usage": map[string]any{"prompt_tokens": 6.0, "completion_tokens": 9.0, "total_tokens": 15.0},
	}
	if diff := cmp.Diff(want, members(t, body)); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

func TestTextCompletion(t *testing.T) {
	_, url := start(t, demo.Options{})
	_, body := call(t, "POST", url+"/v1/completions", `{"model":"demo-large","prompt":["once"],"benchmark":{"token_count":4}}`)
	want := map[string]any{
		"id": "cmpl-demo-00000001", "object": "text_completion", "model": "demo-large",
		"system_fingerprint": "fp_sluice_demo",
		"choices": []any{map[string]any{
			"index": 0.0, "logprobs": nil, "finish_reason": "stop", "text": "This is backend demo.",
		}},
		"usage": map[string]any{"prompt_tokens": 1.0, "completion_tokens": 4.0, "total_tokens": 5.0},
	}
	if diff := cmp.Diff(want, members(t, body)); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
}

// events reads server-sent events up to the end of the stream.
func events(t *testing.T, r io.Reader) []string {
	t.Helper()
	var out []string
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case isData:
			out = append(out, data)
		case lines.Text() != "":
			t.Errorf("a line that is no event: %q", lines.Text())
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

type chunk struct {
	ID, Object string
	Choices    []struct {
		Text         string
		Delta        struct{ Role, Content string }
		FinishReason *string `json:"finish_reason"`
	}
	Usage json.RawMessage
}

// A streamed answer says the same as the whole one, chunk by chunk.
func TestStream(t *testing.T) {
	for _, route := range []struct{ name, path, input, object string }{
		{"chat", "/v1/chat/completions", `"messages":[{"role":"user","content":"hello there"}]`, "chat.completion.chunk"},
		{"text", "/v1/completions", `"prompt":"hello there"`, "text_completion"},
	} {
		for _, includeUsage := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/usage=%v", route.name, includeUsage), func(t *testing.T) {
				_, url := start(t, demo.Options{})
				_, body := call(t, "POST", url+route.path, `{"model":"demo-small",`+route.input+`}`)
				var whole struct {
					Choices []struct {
						Text    string
						Message struct{ Content string }
					}
					Usage json.RawMessage
				}
				if err := json.Unmarshal(body, &whole); err != nil {
					t.Fatal(err)
				}
				res, streamed := call(t, "POST", url+route.path, fmt.Sprintf(
					`{"model":"demo-small","stream":true,"stream_options":{"include_usage":%v},%s}`, includeUsage, route.input))
				if got := res.Header.Get("Content-Type"); !strings.HasPrefix(got, "text/event-stream") {
					t.Errorf("content type %q", got)
				}
				all := events(t, bytes.NewReader(streamed))
				if len(all) < 10 || all[len(all)-1] != "[DONE]" {
					t.Fatalf("%d events, the last is %q", len(all), all[len(all)-1])
				}
				text, finish, usage := "", "", json.RawMessage(nil)
				for i, e := range all[:len(all)-1] {
					var c chunk
					if err := json.Unmarshal([]byte(e), &c); err != nil {
						t.Fatalf("%v in %s", err, e)
					}
					if c.Object != route.object || !strings.HasSuffix(c.ID, "-00000002") {
						t.Errorf("event %d: object %q, id %q", i, c.Object, c.ID)
					}
					if len(c.Choices) == 0 {
						usage = c.Usage
						continue
					}
					if wantNull := string(c.Usage) == "null"; wantNull != includeUsage {
						t.Errorf("event %d: usage %q", i, c.Usage)
					}
					text += c.Choices[0].Text + c.Choices[0].Delta.Content
					if f := c.Choices[0].FinishReason; f != nil {
						finish = *f
					}
				}
				if want := whole.Choices[0].Text + whole.Choices[0].Message.Content; text != want || !strings.Contains(text, "“hello there”") {
					t.Errorf("streamed %q, whole %q", text, want)
				}
				if finish != "stop" {
					t.Errorf("finish_reason %q", finish)
				}
				if includeUsage != bytes.Equal(usage, whole.Usage) {
					t.Errorf("usage %s, whole answer %s", usage, whole.Usage)
				}
			})
		}
	}
}

func TestRefusals(t *testing.T) {
	const chat, text, embeddings = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
	messages := `"messages":[{"role":"user","content":"x"}]`
	for _, c := range []struct {
		name, path, body string
		status           int
		code, param      string
	}{
		{"no JSON", chat, `{"model":`, 400, "", ""},
		{"not an object", chat, `[]`, 400, "", ""},
		{"no model", chat, `{` + messages + `}`, 400, "", "model"},
		{"unknown model", chat, `{"model":"gpt-9",` + messages + `}`, 404, "model_not_found", "model"},
		{"no messages", chat, `{"model":"demo-small"}`, 400, "", "messages"},
		{"message without role", chat, `{"model":"demo-small","messages":[{"content":"x"}]}`, 400, "", "messages"},
		{"content is a number", chat, `{"model":"demo-small","messages":[{"role":"user","content":7}]}`, 400, "", "messages"},
		{"two choices", chat, `{"model":"demo-small","n":2,` + messages + `}`, 400, "", "n"},
		{"no tokens", chat, `{"model":"demo-small","max_tokens":0,` + messages + `}`, 400, "", "max_tokens"},
		{"options without stream", chat, `{"model":"demo-small","stream_options":{},` + messages + `}`, 400, "", "stream_options"},
		{"negative delay", chat, `{"model":"demo-small","benchmark":{"first_token_delay_ms":-1},` + messages + `}`, 400, "", "benchmark"},
		{"delay over a minute", chat, `{"model":"demo-small","benchmark":{"token_interval_ms":60001},` + messages + `}`, 400, "", "benchmark"},
		{"too many tokens", chat, `{"model":"demo-small","benchmark":{"token_count":4097},` + messages + `}`, 400, "", "benchmark"},
		{"no prompt", text, `{"model":"demo-small"}`, 400, "", "prompt"},
		{"two prompts", text, `{"model":"demo-small","prompt":["a","b"]}`, 400, "", "prompt"},
		{"no input", embeddings, `{"model":"demo-small","input":[]}`, 400, "", "input"},
		{"unknown encoding", embeddings, `{"model":"demo-small","input":"a","encoding_format":"hex"}`, 400, "", "encoding_format"},
		{"no dimensions", embeddings, `{"model":"demo-small","input":"a","dimensions":0}`, 400, "", "dimensions"},
		{"body too large", chat, `{"model":"` + strings.Repeat("x", 8<<20) + `"}`, 413, "request_too_large", ""},
		{"unknown route", "/v1/images", `{}`, 404, "unknown_url", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, url := start(t, demo.Options{})
			res, body := call(t, "POST", url+c.path, c.body)
			var got struct {
				Error struct {
					Message, Type string
					Param, Code   *string
				}
			}
			if err := json.Unmarshal(body, &got); err != nil {
				t.Fatalf("%v in %q", err, body)
			}
			if res.StatusCode != c.status {
				t.Errorf("status %d, want %d: %s", res.StatusCode, c.status, body)
			}
			if got.Error.Message == "" || got.Error.Type != "invalid_request_error" {
				t.Errorf("error %s", body)
			}
			if p := got.Error.Param; (p == nil) != (c.param == "") || p != nil && *p != c.param {
				t.Errorf("param in %s, want %q", body, c.param)
			}
			if p := got.Error.Code; (p == nil) != (c.code == "") || p != nil && *p != c.code {
				t.Errorf("code in %s, want %q", body, c.code)
			}
			if s := b.Stats(); s.Refused != 1 || s.Started != 0 {
				t.Errorf("stats %+v", s)
			}
		})
	}
}

func TestRefusesOtherContentTypes(t *testing.T) {
	b := demo.NewBackend(demo.Options{})
	req := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(`{}`))
	req.Header.Set("Content-Type", "text/plain")
	w := httptest.NewRecorder()
	b.ServeHTTP(w, req)
	if w.Code != http.StatusUnsupportedMediaType {
		t.Errorf("status %d", w.Code)
	}
}

func TestEmbeddings(t *testing.T) {
	_, url := start(t, demo.Options{})
	input := `"model":"demo-small","dimensions":64,"input":["a mill by the river","the river by a mill","entirely different words"]`
	type answer struct {
		Object string
		Data   []struct {
			Index     int
			Embedding json.RawMessage
		}
		Usage struct {
			PromptTokens int `json:"prompt_tokens"`
		}
	}
	get := func(body string) (a answer) {
		_, text := call(t, "POST", url+"/v1/embeddings", body)
		if err := json.Unmarshal(text, &a); err != nil {
			t.Fatal(err)
		}
		if a.Object != "list" || len(a.Data) != 3 || a.Data[2].Index != 2 || a.Usage.PromptTokens != 13 {
			t.Fatalf("answer %s", text)
		}
		return a
	}
	floats, packed := get(`{`+input+`}`), get(`{`+input+`,"encoding_format":"base64"}`)
	var vectors [3][]float32
	for i := range vectors {
		if err := json.Unmarshal(floats.Data[i].Embedding, &vectors[i]); err != nil {
			t.Fatal(err)
		}
		var text string
		if err := json.Unmarshal(packed.Data[i].Embedding, &text); err != nil {
			t.Fatal(err)
		}
		raw, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		unpacked := make([]float32, len(raw)/4)
		for j := range unpacked {
			unpacked[j] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*j:]))
		}
		if diff := cmp.Diff(vectors[i], unpacked); diff != "" || len(unpacked) != 64 {
			t.Errorf("the two encodings of vector %d differ:\n%s", i, diff)
		}
	}
	dot := func(a, b []float32) (sum float64) {
		for i := range a {
			sum += float64(a[i]) * float64(b[i])
		}
		return sum
	}
	if same := dot(vectors[0], vectors[1]); math.Abs(same-1) > 1e-5 {
		t.Errorf("the same words in another order: similarity %v, want 1", same)
	}
	if other := dot(vectors[0], vectors[2]); other > 0.7 {
		t.Errorf("other words: similarity %v", other)
	}
}
