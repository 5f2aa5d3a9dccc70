package demo_test

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"testing"

	"github.com/sluice-proxy/sluice/internal/demo"
)

// Whatever is sent, the answer is JSON or nothing, and the counters add up. The
// client of each request has gone already, so that no delay is waited for.
func FuzzRequest(f *testing.F) {
	paths := []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings"}
	for i, body := range []string{
		hello + `}`,
		hello + `,"stream":true,"stream_options":{"include_usage":true},"max_tokens":3}`,
		hello + `,"benchmark":{"first_token_delay_ms":50,"token_interval_ms":10,"token_count":32}}`,
		`{"model":"demo-small","messages":[{"role":"user","content":[{"type":"text","text":"\u00e9\n"}]},{"role":"tool","content":null}]}`,
		`{"model":"demo-small","prompt":[1,2,3]}`,
		`{"model":"demo-small","input":[[1,2],[3]],"encoding_format":"base64"}`,
		`{"model":"demo-small","input":["a","b"],"dimensions":8}`,
		`{"model":null}`, `null`, `[]`, ``,
	} {
		f.Add(uint8(i), body)
	}
	gone, leave := context.WithCancel(context.Background())
	leave()
	f.Fuzz(func(t *testing.T, route uint8, body string) {
		b := demo.NewBackend(demo.Options{})
		w := httptest.NewRecorder()
		b.ServeHTTP(w, post(gone, paths[int(route)%len(paths)], body))
		if w.Header().Get("Content-Type") == "application/json" && !json.Valid(w.Body.Bytes()) {
			t.Errorf("status %d with a body that is no JSON: %q", w.Code, w.Body)
		}
		s := b.Stats()
		if s.Active != 0 || s.Started != s.Completed+s.Cancelled || s.Started+s.Refused > 1 {
			t.Errorf("counters do not add up: %+v", s)
		}
		if w.Code >= 400 && s.Refused != 1 {
			t.Errorf("status %d was not counted as refused: %+v", w.Code, s)
		}
	})
}
