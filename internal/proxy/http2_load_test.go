package proxy_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/http1"
)

// KF-STR-13: clients that do not read hold up neither the backend's other streams nor memory: what waits for each is bounded
// by its window.
func TestKF_STR_13_HTTP2(t *testing.T) {
	t.Parallel()
	var wrote atomic.Int64
	url := foreignH2C(t, func(w http.ResponseWriter, r *http.Request) {
		piece := make([]byte, 64<<10)
		for r.URL.Path == "/endless" {
			n, err := w.Write(piece)
			if wrote.Add(int64(n)); err != nil {
				return
			}
		}
		_, _ = w.Write(piece)
	})
	g := newGateway(t, kernelMode, options{server: func(s *http1.Settings) { s.WriteIdleTimeout = time.Minute }}, url)
	const stalled = 20
	for range stalled {
		c := g.dial(t)
		_ = c.Conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		c.send("GET /endless HTTP/1.1\r\nHost: a\r\n\r\n")
	}
	last := int64(-1)
	eventually(t, patience, "nothing moves any more", func() bool {
		now := wrote.Load()
		same := now == last && now > 0 && g.backends()[0].Pool.Stats().Streams >= stalled
		last = now
		time.Sleep(200 * time.Millisecond) // a look at two moments
		return same
	})
	began := time.Now()
	c := g.dial(t)
	for range 50 {
		c.send(get)
		if m := c.message(false); m.status() != "200" {
			t.Fatalf("%+v", m)
		}
	}
	if d := time.Since(began); d > patience {
		t.Errorf("50 requests beside took %v", d)
	}
	if s := g.backends()[0].Pool.Stats(); s.Open != 1 || s.Streams < stalled {
		t.Errorf("%+v", s)
	}
}

// KF-H2G-01, KF-H2G-02: trailers need no announcement in either direction of the versions, and te: trailers arrives as that
// alone.
func TestKF_H2G_01_Trailers(t *testing.T) {
	t.Parallel()
	te := make(chan string, 10)
	g := newGateway(t, kernelMode, options{}, framed(t, func(f *frames) {
		for {
			fr, ok := f.next(xhttp2.FrameHeaders).(*xhttp2.MetaHeadersFrame)
			if !ok {
				return
			}
			for _, h := range fr.Fields {
				if h.Name == "te" {
					te <- h.Value
				}
			}
			f.head(fr.StreamID, false, ":status", "200")
			_ = f.WriteData(fr.StreamID, false, []byte("data"))
			f.head(fr.StreamID, true, "grpc-status", "0", "x-t", "1")
		}
	}))
	for name, c := range g.clients(t) {
		req, _ := http.NewRequest("GET", "http://"+g.addr+"/", nil)
		req.Header.Set("Te", "trailers")
		if name == "h1" {
			req.Header.Set("Te", "gzip;q=0.5, trailers")
		}
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if string(body) != "data" || err != nil || res.Trailer.Get("Grpc-Status") != "0" || res.Trailer.Get("X-T") != "1" {
			t.Errorf("%s: %q, %v, %v", name, body, err, res.Trailer)
		}
		if v := <-te; v != "trailers" {
			t.Errorf("%s: te: %s", name, v)
		}
	}
}

// KF-H2G-05: a large upload arrives whole.
func TestKF_H2G_05_UploadHTTP2(t *testing.T) {
	t.Parallel()
	const size = 100 << 20
	url := foreignH2C(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n, err)
	})
	g := newGateway(t, kernelMode, options{}, url)
	for name, c := range g.clients(t) {
		res, err := c.Post("http://"+g.addr, "text/plain", io.LimitReader(zeros{}, size))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if string(body) != fmt.Sprint(size, nil) || err != nil {
			t.Errorf("%s: %q, %v", name, body, err)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// KF-H2G-08: a client that opens and leaves as fast as it can is made to wait for it itself: the backend sees no more resets
// than it bears, and others do not notice.
func TestKF_H2G_08_ResetsUpstream(t *testing.T) {
	t.Parallel()
	var slow, resets, most, begun atomic.Int64 // begun is when the client begins to leave; what is late after that is only read late
	g := newGateway(t, kernelMode, options{}, framed(t, func(f *frames) {
		for {
			fr, err := f.ReadFrame()
			if err != nil {
				return
			}
			switch fr := fr.(type) {
			case *xhttp2.MetaHeadersFrame:
				if fr.PseudoValue("path") == "/" {
					f.head(fr.StreamID, true, ":status", "200")
				} else {
					slow.Add(1)
				}
			case *xhttp2.RSTStreamFrame:
				// What is at once, and what is a second after that.
				over := resets.Add(1) - int64(100+25*(1+(time.Now().UnixNano()-begun.Load())/int64(time.Second)))
				most.Store(max(most.Load(), over))
			}
		}
	}))
	c, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, xhttp2.ClientPreface)
	fr := xhttp2.NewFramer(c, c)
	_ = fr.WriteSettings()
	go func() { _, _ = io.Copy(io.Discard, c) }()
	const streams = 175 // whose resets take three seconds
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	for id := uint32(1); id < 2*streams; id += 2 {
		block.Reset()
		for _, h := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "a"}, {":path", "/slow"}} {
			_ = enc.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		_ = fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
	}
	eventually(t, patience, "all requests are there", func() bool { return slow.Load() == streams })
	<-time.After(2 * time.Second) // of calm, which entitle to nothing
	begun.Store(time.Now().UnixNano())
	for id := uint32(1); id < 2*streams; id += 2 {
		_ = fr.WriteRSTStream(id, xhttp2.ErrCodeCancel)
	}
	other := g.dial(t)
	for range 20 {
		began := time.Now()
		other.send(get)
		if m := other.message(false); m.status() != "200" || time.Since(began) > 2*time.Second {
			t.Errorf("%+v after %v", m, time.Since(began))
		}
	}
	eventually(t, patience, "all streams are reset", func() bool { return resets.Load() == streams })
	if n := most.Load(); n > 0 {
		t.Errorf("%d resets too many", n)
	}
}

// KF-H2G-04: what was refused finds a place also where there may be no connection for each.
func TestKF_H2G_04_FewConnections(t *testing.T) {
	t.Parallel()
	const requests = 20
	for _, most := range []int{1, 2} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			t.Parallel()
			all := make(chan struct{}, requests)
			o := options{service: func(l *config.LoadBalancer) { l.Transport.MaxConnections = most }}
			g := newGateway(t, kernelMode, o, framed(t, func(f *frames) {
				for range requests {
					f.request()
				}
				_ = f.WriteGoAway(0, xhttp2.ErrCodeNo, nil)
			}, (*frames).answer))
			for range requests {
				go func() {
					if m := g.ask(t, get); m.status() != "200" {
						t.Errorf("%+v", m)
					}
					all <- struct{}{}
				}()
			}
			for range requests {
				<-all
			}
		})
	}
}
