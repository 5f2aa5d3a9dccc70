package peers_test

//lint:file-ignore SA1019 the foreign client is chosen for its own transport: it speaks without TLS over what we dial

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// h2Modes are the ways to speak HTTP/2.
var h2Modes = []departureMode{{"h2 over tls", true, true}, {"h2c", false, true}}

// h2Client is Go's client on one connection.
func (s *site) h2Client(t *testing.T, m departureMode) (c *http.Client, url string) {
	tr := &http2.Transport{AllowHTTP: true, TLSClientConfig: clientTLS("h2")}
	url = "https://" + s.tls
	if !m.tls {
		url = "http://" + s.clear
		tr.DialTLSContext = func(ctx context.Context, network, addr string, _ *tls.Config) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 40 * time.Second}, url
}

// streamLimit is what the gateway announces to HTTP/2 clients.
const streamLimit = 250

// TestResets opens and resets streams as fast as it can before a slow backend: what runs at once stays within the stream
// limit, other clients hardly notice, and nothing is left (KF-H2G-08).
func TestResets(t *testing.T) {
	const resets = 10_000
	var running, most atomic.Int64
	back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/slow" {
			_, _ = io.WriteString(w, "fast")
			return
		}
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-r.Context().Done()
	}))
	defer back.Close()
	s := serve(t, back.URL)

	stop := make(chan struct{})
	var others sync.WaitGroup
	var times []time.Duration
	others.Go(func() { times = askUntil(t, s, stop) })
	var inGateway float64
	others.Go(func() { inGateway = s.mostActive(t, stop) })

	l := enter(t, s, h2Modes[1])
	sent, err := 0, error(nil)
	for ; sent < resets && err == nil; sent++ {
		err = l.openAndReset(uint32(1 + 2*sent))
	}
	select {
	case <-l.done:
	case <-time.After(patience):
		t.Error("the connection of the client that resets is left open")
	}
	_ = l.c.Close()
	eventually(t, patience, "the backend has nothing to do any more", func() bool { return running.Load() == 0 })
	close(stop)
	others.Wait()
	s.empty(t)

	t.Logf("%d resets were taken (%v); at most %v ran at once in the gateway, %d at the backend", sent, err, inGateway, most.Load())
	// The other client has one request at a time.
	if inGateway > streamLimit+1 {
		t.Errorf("%v requests ran in the gateway at once", inGateway)
	}
	// A backend learns a moment late that a request was taken back, when the next one may have come already.
	if most.Load() > 2*streamLimit {
		t.Errorf("%d requests ran at the backend at once", most.Load())
	}
	slices.Sort(times)
	if len(times) < 20 {
		t.Errorf("another client got %d answers meanwhile", len(times))
	} else if p99 := times[len(times)*99/100]; p99 > 5*time.Second {
		t.Errorf("another client waited %v for its slowest answers", p99)
	}
}

// mostActive reads again and again how many requests run in the gateway, and returns the highest figure.
func (s *site) mostActive(t *testing.T, stop chan struct{}) (most float64) {
	for {
		for _, v := range s.gauges(t, "gateway_service_active_requests") {
			most = max(most, v)
		}
		select {
		case <-stop:
			return most
		default:
		}
	}
}

// openAndReset begins a request and takes it back.
func (l *leaver) openAndReset(stream uint32) error {
	if err := l.requestH2(stream, "GET", "/slow"); err != nil {
		return err
	}
	return l.fr.WriteRSTStream(stream, http2.ErrCodeCancel)
}

// askUntil is another client, whose requests must all be answered.
func askUntil(t *testing.T, s *site, stop chan struct{}) (times []time.Duration) {
	c := &http.Client{Transport: &http.Transport{}, Timeout: 20 * time.Second}
	defer c.CloseIdleConnections()
	for {
		began := time.Now()
		res, err := c.Get("http://" + s.clear + "/fast")
		if err != nil {
			t.Errorf("another client: %v", err)
			return times
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != 200 || string(b) != "fast" {
			t.Errorf("another client: %d %q %v", res.StatusCode, b, err)
		}
		times = append(times, time.Since(began))
		select {
		case <-stop:
			if len(times) >= 20 {
				return times
			}
		default:
		}
	}
}

// TestConcurrentStreams opens more streams than are allowed, without a reset: the excess is refused (RFC 9113
// section 5.1.2) and never comes to a backend, which the rest does.
func TestConcurrentStreams(t *testing.T) {
	t.Parallel()
	back := script(t)
	s := serve(t, "http://"+back.l.Addr().String())
	c, err := net.Dial("tcp", s.clear)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	l := &leaver{c: c, fr: http2.NewFramer(c, c)}
	_, _ = io.WriteString(c, http2.ClientPreface)
	_ = l.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	_ = l.fr.WriteSettingsAck()
	const excess = 5
	for i := range uint32(streamLimit + excess) {
		if err := l.requestH2(1+2*i, "GET", "/silent"); err != nil {
			t.Fatal(err)
		}
	}
	refused := map[uint32]http2.ErrCode{}
	for len(refused) < excess {
		f, err := l.fr.ReadFrame()
		if err != nil {
			t.Fatalf("after %v: %v", refused, err)
		}
		if r, ok := f.(*http2.RSTStreamFrame); ok {
			refused[r.StreamID] = r.ErrCode
		}
	}
	for id, code := range refused {
		if code != http2.ErrCodeRefusedStream && code != http2.ErrCodeProtocol || id <= 2*streamLimit {
			t.Errorf("stream %d: %v", id, code)
		}
	}
	back.await(t, streamLimit)
	_ = c.Close()
	for range streamLimit {
		<-back.ended
	}
	s.empty(t)
}

// counting is a body of n bytes that nobody keeps.
type counting struct{ left int64 }

func (c *counting) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), c.left))
	c.left -= int64(n)
	return n, nil
}

// TestLargeBodies moves much in both directions at once and holds the memory of the process, both ends in it, flat.
func TestLargeBodies(t *testing.T) {
	const size, memory = 96 << 20, 48 << 20
	for _, m := range h2Modes {
		t.Run(m.name, func(t *testing.T) {
			back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if n, err := io.Copy(io.Discard, r.Body); err != nil || r.Method == "POST" && n != size {
					t.Errorf("the backend got %d bytes: %v", n, err)
				}
				if r.Method == "GET" {
					_, _ = io.CopyN(w, &counting{size}, size)
				}
			}))
			defer back.Close()
			s := serve(t, back.URL)
			c, url := s.h2Client(t, m)
			before := heap()
			stop, grown := make(chan struct{}), make(chan uint64)
			go func() { grown <- watchHeap(stop) }()
			var both sync.WaitGroup
			both.Go(func() { // without a length, so that it is streamed
				res, err := c.Post(url+"/up", "application/octet-stream", io.MultiReader(&counting{size}))
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				if res.StatusCode != 200 {
					t.Errorf("upload: %d", res.StatusCode)
				}
			})
			both.Go(func() {
				res, err := c.Get(url + "/down")
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				if n, err := io.Copy(io.Discard, res.Body); err != nil || n != size {
					t.Errorf("the client got %d bytes: %v", n, err)
				}
			})
			both.Wait()
			close(stop)
			peak := <-grown
			t.Logf("heap %d KiB, then at most %d KiB", before>>10, peak>>10)
			if peak > before+memory {
				t.Errorf("the heap grew from %d to %d bytes", before, peak)
			}
			c.CloseIdleConnections()
		})
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// watchHeap returns the most that was in use until stop.
func watchHeap(stop chan struct{}) (most uint64) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		most = max(most, heap())
		select {
		case <-stop:
			return most
		case <-tick.C:
		}
	}
}

// TestEvents sends events one by one, each only after the client has read the one before: nothing is held back.
func TestEvents(t *testing.T) {
	t.Parallel()
	const events = 50
	for _, m := range h2Modes {
		t.Run(m.name, func(t *testing.T) {
			next := make(chan struct{}, 1)
			back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for i := range events {
					select {
					case <-next:
					case <-r.Context().Done():
						return
					}
					fmt.Fprintf(w, "data: %d\n\n", i)
					w.(http.Flusher).Flush()
				}
			}))
			defer back.Close()
			s := serve(t, back.URL)
			c, url := s.h2Client(t, m)
			next <- struct{}{}
			res, err := c.Get(url + "/events")
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			r := bufio.NewReader(res.Body)
			for i := range events {
				line, err := r.ReadString('\n')
				empty, err2 := r.ReadString('\n')
				if err != nil || err2 != nil || line != fmt.Sprintf("data: %d\n", i) || empty != "\n" {
					t.Fatalf("event %d: %q %q %v %v", i, line, empty, err, err2)
				}
				if i < events-1 {
					next <- struct{}{}
				}
			}
			if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
				t.Errorf("behind the last event: %q, %v", rest, err)
			}
			c.CloseIdleConnections()
		})
	}
}
