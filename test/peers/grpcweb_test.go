package peers_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestGRPCWebPassesThrough sends gRPC-Web as browsers do: for the gateway it is HTTP like any other. Heads and bodies pass
// unchanged, whatever is spoken on either side, and what the gateway says itself is in JSON.
func TestGRPCWebPassesThrough(t *testing.T) {
	t.Parallel()
	request := []byte("\x00\x00\x00\x00\x05hello\x00\x00\x01\x00\x00" + string(make([]byte, 0x10000)))
	answer := []byte("\x00\x00\x00\x00\x02\x08\x01\x80\x00\x00\x00\x1fgrpc-status:0\r\ngrpc-message:ok\r\n")
	type call struct {
		contentType, timeout, path string
		body                       [sha256.Size]byte
	}
	got := make(chan call, 1)
	back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		got <- call{r.Header.Get("Content-Type"), r.Header.Get("Grpc-Timeout"), r.RequestURI, sha256.Sum256(body)}
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		for _, b := range answer { // in pieces, as it is framed anew
			_, _ = w.Write([]byte{b})
			w.(http.Flusher).Flush()
		}
	}))
	defer back.Close()
	s := serve(t, back.URL)
	nobody := serve(t, "http://127.0.0.1:1")
	for _, version := range []int{1, 2} {
		for _, kind := range []string{"application/grpc-web+proto", "application/grpc-web", "application/grpc-web-text"} {
			t.Run(fmt.Sprintf("%s over HTTP/%d", kind, version), func(t *testing.T) {
				tr := &http.Transport{Protocols: new(http.Protocols)}
				tr.Protocols.SetHTTP1(version == 1)
				tr.Protocols.SetUnencryptedHTTP2(version == 2)
				defer tr.CloseIdleConnections()
				post := func(s *site) (*http.Response, []byte) {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.clear+"/a.B/C", bytes.NewReader(request))
					if err != nil {
						t.Fatal(err)
					}
					req.Header.Set("Content-Type", kind)
					req.Header.Set("Grpc-Timeout", "1n") // in vain: it is not ours to judge
					res, err := tr.RoundTrip(req)
					if err != nil {
						t.Fatal(err)
					}
					defer res.Body.Close()
					body, err := io.ReadAll(res.Body)
					if err != nil || res.ProtoMajor != version {
						t.Fatal(res.Proto, err)
					}
					return res, body
				}
				res, body := post(s)
				if want := (call{kind, "1n", "/a.B/C", sha256.Sum256(request)}); <-got != want {
					t.Error("the request has changed")
				}
				if !bytes.Equal(body, answer) || res.Header.Get("Content-Type") != kind || res.StatusCode != 200 || len(res.Trailer) > 0 {
					t.Errorf("answer %d %v %q", res.StatusCode, res.Header, body)
				}
				if res, body = post(nobody); res.StatusCode != 502 || !bytes.Contains(body, []byte(`"code":"connect_failed"`)) || res.Header.Get("Grpc-Status") != "" {
					t.Errorf("error %d %v %q", res.StatusCode, res.Header, body)
				}
			})
		}
	}
}
