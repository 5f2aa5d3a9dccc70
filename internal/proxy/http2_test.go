package proxy_test

//lint:file-ignore SA1019 the foreign client and server are chosen because they speak without TLS

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/h2c"
	"golang.org/x/net/http2/hpack"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// foreignH2C is a backend of net/http that speaks HTTP/2 without TLS; connections is how many it has accepted.
func foreignH2C(t testing.TB, h http.HandlerFunc) (url string) {
	t.Helper()
	s := &http.Server{Handler: h2c.NewHandler(h, &xhttp2.Server{MaxConcurrentStreams: 50})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() {
		s.Close()
		served.Wait()
	})
	return "h2c://" + l.Addr().String()
}

// clients ask a gateway over either protocol.
func (g *gateway) clients(t testing.TB) map[string]*http.Client {
	one := &http.Transport{DisableCompression: true}
	two := &xhttp2.Transport{
		AllowHTTP: true, DisableCompression: true,
		DialTLSContext: func(ctx context.Context, _, _ string, _ *tls.Config) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", g.addr)
		},
	}
	t.Cleanup(one.CloseIdleConnections)
	t.Cleanup(two.CloseIdleConnections)
	return map[string]*http.Client{"h1": {Transport: one}, "h2": {Transport: two}}
}

// Every kind of exchange goes through to an HTTP/2 backend, from clients of both protocols.
func TestHTTP2Backend(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("0123456789abcdef", 40<<10)
	url := foreignH2C(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Saw", fmt.Sprintf("%s %s %s %s %d te=%s", r.Proto, r.Method, r.URL.RequestURI(), r.Host, r.ContentLength, r.Header.Get("Te")))
		switch r.URL.Path {
		case "/echo":
			w.Header().Set("Trailer", "X-Sum")
			_ = http.NewResponseController(w).Flush() // or a length is made, which has no trailers in HTTP/1.1
			n, err := io.Copy(w, r.Body)
			w.Header().Set("X-Sum", fmt.Sprintf("%d %v", n, err))
		case "/hints":
			w.Header().Set("Link", "</a>")
			w.WriteHeader(103)
			fmt.Fprint(w, "x")
		case "/204":
			w.WriteHeader(204)
		case "/304":
			w.WriteHeader(304)
		case "/length":
			w.Header().Set("Content-Length", "5")
			fmt.Fprint(w, "hello")
		case "/upload":
			w.WriteHeader(413) // without having read
		default:
			fmt.Fprint(w, large)
		}
	})
	g := newGateway(t, kernelMode, options{}, url)
	for name, c := range g.clients(t) {
		for _, tc := range []struct {
			method, path, body string
			chunked            bool
			status             int
			saw, want, trailer string
		}{
			{"GET", "/large?q=1", "", false, 200, "HTTP/2.0 GET /large?q=1 %s 0 te=", large, ""},
			{"GET", "/length", "", false, 200, "HTTP/2.0 GET /length %s 0 te=", "hello", ""},
			{"HEAD", "/length", "", false, 200, "HTTP/2.0 HEAD /length %s 0 te=", "", ""},
			{"POST", "/echo", "small", false, 200, "HTTP/2.0 POST /echo %s 5 te=", "small", "5 <nil>"},
			{"POST", "/echo", large, false, 200, fmt.Sprintf("HTTP/2.0 POST /echo %%s %d te=", len(large)), large, fmt.Sprintf("%d <nil>", len(large))},
			{"PUT", "/echo", "streamed", true, 200, "HTTP/2.0 PUT /echo %s -1 te=", "streamed", "8 <nil>"},
			{"GET", "/hints", "", false, 200, "HTTP/2.0 GET /hints %s 0 te=", "x", ""},
			{"DELETE", "/204", "", false, 204, "HTTP/2.0 DELETE /204 %s 0 te=", "", ""},
			{"GET", "/304", "", false, 304, "HTTP/2.0 GET /304 %s 0 te=", "", ""},
			{"POST", "/upload", "small", false, 413, "HTTP/2.0 POST /upload %s 5 te=", "", ""},
		} {
			t.Run(name+tc.path, func(t *testing.T) {
				req, _ := http.NewRequest(tc.method, "http://"+g.addr+tc.path, nil)
				if tc.body != "" {
					req.Body, req.ContentLength = io.NopCloser(strings.NewReader(tc.body)), int64(len(tc.body))
				}
				if tc.chunked {
					req.ContentLength, req.Trailer = -1, http.Header{"X-Up": {"up"}}
				}
				res, err := c.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				body, err := io.ReadAll(res.Body)
				if err != nil || res.StatusCode != tc.status || string(body) != tc.want {
					t.Errorf("%d, %d bytes, %v", res.StatusCode, len(body), err)
				}
				if saw := res.Header.Get("X-Saw"); saw != fmt.Sprintf(tc.saw, g.addr) {
					t.Errorf("the backend saw %q", saw)
				}
				if sum := res.Trailer.Get("X-Sum"); sum != tc.trailer {
					t.Errorf("trailer %q", sum)
				}
			})
		}
	}
	if s := g.backends()[0].Pool.Stats(); s.Open != 1 {
		t.Errorf("%+v: one connection is enough", s)
	}
}

// Bytes go both ways while both bodies are open, from a client of HTTP/2 to a backend of HTTP/2.
func TestHTTP2FullDuplex(t *testing.T) {
	t.Parallel()
	url := foreignH2C(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		b := make([]byte, 100)
		for {
			n, err := r.Body.Read(b)
			_, _ = w.Write(b[:n])
			_ = http.NewResponseController(w).Flush()
			if err != nil {
				return
			}
		}
	})
	g := newGateway(t, kernelMode, options{}, url)
	pr, pw := io.Pipe()
	req, _ := http.NewRequest("POST", "http://"+g.addr+"/", pr)
	res, err := g.clients(t)["h2"].Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for i := range 10 {
		sent := fmt.Sprintf("message %d", i)
		if _, err := io.WriteString(pw, sent); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(sent))
		if _, err := io.ReadFull(res.Body, got); err != nil || string(got) != sent {
			t.Fatalf("%q, %v", got, err)
		}
	}
	pw.Close()
	if rest, err := io.ReadAll(res.Body); len(rest) > 0 || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
}

// Fields behind a request body reach the backend, whether the body's length was told or not, and however much of it has come.
func TestHTTP2RequestTrailers(t *testing.T) {
	t.Parallel()
	g := newGateway(t, kernelMode, options{}, framed(t, func(f *frames) {
		for id := f.request(); id != 0; id = f.request() {
			got := "nothing"
			if trailers, ok := f.next(xhttp2.FrameHeaders).(*xhttp2.MetaHeadersFrame); ok && trailers.StreamEnded() {
				got = fmt.Sprint(trailers.RegularFields())
			}
			f.head(id, true, ":status", "200", "x-got", got)
		}
	}))
	for _, length := range []int64{-1, 4} {
		req, _ := http.NewRequest("POST", "http://"+g.addr+"/", io.NopCloser(strings.NewReader("body")))
		req.ContentLength, req.Trailer = length, http.Header{"X-Up": {"up"}}
		res, err := g.clients(t)["h2"].Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if got := res.Header.Get("X-Got"); !strings.Contains(got, `"x-up" = "up"`) {
			t.Errorf("length %d: the backend got %s", length, got)
		}
	}
}

// framed is a backend made of frames: each connection is served by the next of the functions, the last one by all others.
func framed(t testing.TB, serve ...func(f *frames)) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for i := 0; ; i++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(3 * patience))
				pre := make([]byte, len(xhttp2.ClientPreface))
				if _, err := io.ReadFull(c, pre); err != nil {
					return
				}
				f := &frames{t: t, Framer: xhttp2.NewFramer(c, c), c: c}
				f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
				_ = f.WriteSettings()
				serve[min(i, len(serve)-1)](f)
				_, _ = io.Copy(io.Discard, c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return "h2c://" + l.Addr().String()
}

// frames is the backend's end of a connection.
type frames struct {
	*xhttp2.Framer
	t testing.TB
	c net.Conn
}

// next reads frames until one is of the kind.
func (f *frames) next(kind xhttp2.FrameType) xhttp2.Frame {
	for {
		fr, err := f.ReadFrame()
		if err != nil {
			return nil
		}
		if fr.Header().Type == kind {
			return fr
		}
	}
}

// request awaits a request, and returns its stream.
func (f *frames) request() uint32 {
	if fr := f.next(xhttp2.FrameHeaders); fr != nil {
		return fr.Header().StreamID
	}
	return 0
}

// acknowledged awaits a request, and so many acknowledgements of settings, and returns the request's stream.
func (f *frames) acknowledged(settings int) (id uint32) {
	for id == 0 || settings > 0 {
		fr, err := f.ReadFrame()
		if err != nil {
			return 0
		}
		switch fr := fr.(type) {
		case *xhttp2.MetaHeadersFrame:
			id = fr.StreamID
		case *xhttp2.SettingsFrame:
			if fr.IsAck() {
				settings--
			}
		}
	}
	return id
}

// head sends a response head.
func (f *frames) head(id uint32, end bool, fields ...string) {
	var b bytes.Buffer
	enc := hpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = f.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, BlockFragment: b.Bytes(), EndStream: end, EndHeaders: true})
}

// answer serves every request.
func (f *frames) answer() {
	for {
		id := f.request()
		if id == 0 {
			return
		}
		f.head(id, false, ":status", "200")
		_ = f.WriteData(id, true, []byte("ok"))
	}
}

// KF-H2G-04: what the backend surely did not begin is tried again, on another connection, and nothing else is.
func TestKF_H2G_04_Retry(t *testing.T) {
	t.Parallel()
	refuse := func(f *frames) { _ = f.WriteRSTStream(f.request(), xhttp2.ErrCodeRefusedStream) }
	goAway := func(f *frames) { f.request(); _ = f.WriteGoAway(0, xhttp2.ErrCodeNo, nil) }
	cut := func(f *frames) { f.request(); f.c.Close() }
	reset := func(f *frames) { _ = f.WriteRSTStream(f.request(), xhttp2.ErrCodeInternal) }
	goOn := func(f *frames) { f.answer() }
	const post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
	for name, tc := range map[string]struct {
		serve    []func(*frames)
		request  string
		status   string
		attempts int
	}{
		"refused":       {[]func(*frames){refuse, goOn}, get, "200", 2},
		"refused POST":  {[]func(*frames){refuse, goOn}, post, "200", 2},
		"refused twice": {[]func(*frames){refuse, refuse}, get, "502", 2},
		"GOAWAY":        {[]func(*frames){goAway, goOn}, post, "200", 2},
		"cut":           {[]func(*frames){cut, goOn}, get, "502", 1},
		"reset":         {[]func(*frames){reset, goOn}, get, "502", 1},
		"no HTTP/2":     {[]func(*frames){func(f *frames) { f.c.Close() }}, get, "200", 1},
		"GOAWAY behind head": {[]func(*frames){func(f *frames) {
			id := f.request()
			f.head(id, false, ":status", "200")
			_ = f.WriteGoAway(id, 0, nil)
			_ = f.WriteData(id, true, []byte("ok"))
		}}, post, "200", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t, kernelMode, options{}, framed(t, tc.serve...))
			c := g.dial(t)
			c.send(tc.request)
			if m := c.message(false); name != "no HTTP/2" && m.status() != tc.status {
				t.Errorf("%+v", m)
			}
			if r := g.record(0); len(r.Attempts) != tc.attempts {
				t.Errorf("attempts %+v", r.Attempts)
			}
		})
	}
}

// KF-H1-09 over HTTP/2: a connection that the backend closes without a word, behind an answer or while it is idle, costs no
// request that may be sent twice; one that may not is lost only if it was sent.
func TestKF_H1_09_HTTP2(t *testing.T) {
	t.Parallel()
	const post = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"
	once := func(f *frames) {
		id := f.request()
		f.head(id, false, ":status", "200")
		_ = f.WriteData(id, true, []byte("ok"))
	}
	read := func(f *frames) { once(f); f.request(); f.c.Close() }
	reset := func(f *frames) { once(f); f.request(); _ = f.c.(*net.TCPConn).SetLinger(0); f.c.Close() }
	for name, tc := range map[string]struct {
		first           func(*frames)
		request, status string
		attempts        int
	}{
		"closed":      {read, get, "200", 2},
		"reset":       {reset, get, "200", 2},
		"PUT":         {read, strings.Replace(post, "POST", "PUT", 1), "200", 2},
		"POST":        {read, post, "502", 1},
		"PATCH":       {reset, strings.Replace(post, "POST", "PATCH", 1), "502", 1},
		"closed once": {func(f *frames) { once(f); f.request(); f.head(3, false, ":status", "200"); f.c.Close() }, get, "200", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t, kernelMode, options{}, framed(t, tc.first, (*frames).answer))
			c := g.dial(t)
			c.send(get)
			c.message(false)
			c.send(tc.request)
			if name == "closed once" { // an answer that has begun is not replaced by another
				if _, err := c.closed(patience); err != nil {
					t.Error(err)
				}
			} else if m := c.message(false); m.status() != tc.status {
				t.Errorf("%+v", m)
			}
			if r := g.record(1); len(r.Attempts) != tc.attempts || name != "closed once" && r.Attempts[0].Code != exchange.CodeBackendReset {
				t.Errorf("attempts %+v", r.Attempts)
			}
		})
	}
	t.Run("idle", func(t *testing.T) {
		t.Parallel()
		var opened, left atomic.Int64
		g := newGateway(t, kernelMode, options{}, framed(t, func(f *frames) {
			n := opened.Add(1)
			once(f)
			time.Sleep(time.Duration(n%4) * 500 * time.Microsecond)
			f.c.Close()
			left.Add(1)
		}))
		c := g.dial(t)
		for i := range 100 {
			c.send(get)
			if m := c.message(false); m.status() != "200" {
				t.Fatalf("GET %d: %+v", i, m)
			}
		}
		for i := range 50 {
			eventually(t, patience, "the backend has left", func() bool { return left.Load() == opened.Load() })
			c.send(post)
			if m := c.message(false); m.status() != "200" {
				t.Fatalf("POST %d: %+v", i, m)
			}
		}
	})
}

// KF-H2G-04: a backend that takes leave after every request loses none, and each is processed once and whole.
func TestKF_H2G_04_Uploads(t *testing.T) {
	t.Parallel()
	const size, requests, atOnce = 100 << 10, 200, 10
	var processed atomic.Int64
	g := newGateway(t, kernelMode, options{}, framed(t, func(f *frames) {
		id := f.request()
		_ = f.WriteGoAway(id, xhttp2.ErrCodeNo, nil)
		_ = f.WriteWindowUpdate(0, 1<<20)
		_ = f.WriteWindowUpdate(id, 1<<20)
		for got := 0; ; {
			fr, ok := f.next(xhttp2.FrameData).(*xhttp2.DataFrame)
			if !ok {
				return
			}
			if fr.StreamID != id {
				continue
			}
			if got += len(fr.Data()); fr.StreamEnded() {
				if got == size {
					processed.Add(1)
				}
				f.head(id, true, ":status", "200", "x-got", fmt.Sprint(got))
				return
			}
		}
	}))
	c := g.clients(t)["h1"]
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for i := range requests / atOnce {
				req, _ := http.NewRequest("POST", "http://"+g.addr+"/", bytes.NewReader(make([]byte, size)))
				if i%2 == 1 {
					req.ContentLength = -1
				}
				res, err := c.Do(req)
				if err != nil {
					t.Error(err)
					continue
				}
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
				if res.StatusCode != 200 || res.Header.Get("X-Got") != fmt.Sprint(size) {
					t.Errorf("%d, %s bytes arrived", res.StatusCode, res.Header.Get("X-Got"))
				}
			}
		})
	}
	all.Wait()
	if n := processed.Load(); n != requests {
		t.Errorf("%d processed", n)
	}
}
