package peers_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// TestBodyOfUnknownLengthThatIsEmpty sends a head that leaves open how long the body is, and in the same piece that it is
// over: the backend must be told so, too.
func TestBodyOfUnknownLengthThatIsEmpty(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	answer := func(_ http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		got <- fmt.Sprintf("%s %d %q %v", r.Method, r.ContentLength, b, err)
	}
	plain := httptest.NewServer(http.HandlerFunc(answer))
	defer plain.Close()
	for name, s := range map[string]*site{
		"http1": serve(t, plain.URL), "http2": serveGRPC(t, odd(t, answer), false).site,
	} {
		t.Run(name, func(t *testing.T) {
			var out, block bytes.Buffer
			out.WriteString(xhttp2.ClientPreface)
			fr, enc := xhttp2.NewFramer(&out, nil), hpack.NewEncoder(&block)
			for _, f := range []string{":method POST", ":scheme http", ":authority a.test", ":path /"} {
				name, value, _ := strings.Cut(f, " ")
				_ = enc.WriteField(hpack.HeaderField{Name: name, Value: value})
			}
			_ = fr.WriteSettings()
			_ = fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
			_ = fr.WriteData(1, true, nil)
			c, err := net.Dial("tcp", s.clear)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			if _, err := c.Write(out.Bytes()); err != nil {
				t.Fatal(err)
			}
			back := xhttp2.NewFramer(io.Discard, c)
			for {
				f, err := back.ReadFrame()
				if err != nil {
					t.Fatal(err)
				}
				if f.Header().StreamID == 1 && f.Header().Flags.Has(xhttp2.FlagDataEndStream) {
					break
				}
			}
			if r := <-got; r != `POST 0 "" <nil>` {
				t.Errorf("the backend got %s", r)
			}
		})
	}
}
