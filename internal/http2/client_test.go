package http2_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// An ordinary server gets what the head says, and its answer arrives whole.
func TestClientRequests(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		long := strings.Repeat("0123456789abcdef", 64<<10) // 1 MiB
		cc := foreign(t, m, &http2.ClientSettings{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Saw", fmt.Sprintf("%s %s %s %s %d %s|%s", r.Method, r.URL.RequestURI(), r.Host, r.Proto, r.ContentLength, r.Header.Get("Te"), r.Header.Get("X-Name")))
			w.Header().Set("Trailer", "X-Sum")
			switch r.URL.Path {
			case "/early":
				w.WriteHeader(103)
			case "/none":
				w.WriteHeader(204)
				return
			case "/same":
				w.WriteHeader(304)
				return
			case "/echo":
				n, _ := io.Copy(w, r.Body)
				w.Header().Set("X-Sum", fmt.Sprint(n))
				return
			case "/long":
				_, _ = io.WriteString(w, long)
				return
			}
			_, _ = io.WriteString(w, "hello")
		}))
		for name, tc := range map[string]struct {
			head, body                string
			status                    int
			length                    int64
			saw, interim, want, trail string
		}{
			"GET":     {head: "GET /a?b=c\r\nX-Name:  v \t\r\nConnection: close\r\nTE: trailers", status: 200, length: -1, saw: "GET /a?b=c h2.test HTTP/2.0 0 trailers|v", want: "hello"},
			"HEAD":    {head: "HEAD /", status: 200, length: -1, saw: "HEAD / h2.test HTTP/2.0 0 |"},
			"POST":    {head: "POST /echo\r\nContent-Length: 4", body: "body", status: 200, length: -1, saw: "POST /echo h2.test HTTP/2.0 4 |", want: "body", trail: "4"},
			"large":   {head: fmt.Sprintf("PUT /echo\r\nContent-Length: %d", len(long)), body: long, status: 200, length: -1, saw: fmt.Sprintf("PUT /echo h2.test HTTP/2.0 %d |", len(long)), want: long, trail: fmt.Sprint(len(long))},
			"interim": {head: "GET /early", status: 200, length: -1, saw: "GET /early h2.test HTTP/2.0 0 |", interim: "[103]", want: "hello"},
			"204":     {head: "DELETE /none", status: 204, length: -1, saw: "DELETE /none h2.test HTTP/2.0 0 |"},
			"304":     {head: "GET /same", status: 304, length: -1, saw: "GET /same h2.test HTTP/2.0 0 |"},
			"long":    {head: "GET /long", status: 200, length: -1, saw: "GET /long h2.test HTTP/2.0 0 |", want: long},
		} {
			t.Run(name, func(t *testing.T) {
				s, a := open(t, cc), &reply{}
				if err := a.do(s, tc.head, tc.body); err != nil {
					t.Fatal(err)
				}
				saw, _ := a.fields.First("x-saw")
				sum, _ := a.trailers.First("x-sum")
				if a.Status != tc.status || string(saw) != tc.saw || a.body.String() != tc.want || string(sum) != tc.trail {
					t.Errorf("%d %q %d bytes, trailer %q", a.Status, saw, a.body.Len(), sum)
				}
				if got := fmt.Sprint(a.interims); tc.interim != "" && got != tc.interim {
					t.Errorf("interim heads %s", got)
				}
				s.Release(true)
			})
		}
		if st := cc.State(); st.Active != 0 || !st.Usable {
			t.Errorf("afterwards %+v", st)
		}
	})
}

// Bodies move both ways at once, and many streams share the connection.
func TestClientStreamsBothWays(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		cc := foreign(t, m, &http2.ClientSettings{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			b := make([]byte, 8)
			for {
				n, err := r.Body.Read(b)
				_, _ = w.Write(b[:n])
				_ = http.NewResponseController(w).Flush()
				if err != nil {
					w.Header().Set(http.TrailerPrefix+"X-End", r.Trailer.Get("X-Up"))
					return
				}
			}
		}))
		<-cc.Ready()
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				s, ok := cc.Open()
				if !ok {
					t.Error("no stream")
					return
				}
				echoed := make(chan struct{}, 1)
				var up sync.WaitGroup
				a := &reply{each: func() error {
					select {
					case echoed <- struct{}{}:
					default:
					}
					return nil
				}}
				a.sent = func() {
					up.Go(func() {
						for n := range 5 {
							if err := s.Write(fmt.Appendf(nil, "%d.%d,", i, n)); err != nil {
								t.Error(err)
							}
							<-echoed
						}
						var tr exchange.Fields
						tr.Add("X-Up", "yes")
						if err := s.EndBody(&tr); err != nil {
							t.Error(err)
						}
					})
				}
				err := a.do(s, "POST /\r\nTrailer: X-Up\r\nTransfer-Encoding: chunked", "")
				up.Wait()
				want := fmt.Sprintf("%[1]d.0,%[1]d.1,%[1]d.2,%[1]d.3,%[1]d.4,", i)
				if err != nil || a.body.String() != want {
					t.Errorf("%q, %v", a.body.String(), err)
				}
				s.Release(true)
			})
		}
		all.Wait()
	})
}

// KF-H2G-04: streams behind the last one that a GOAWAY names were not processed, the others end as usual.
func TestKF_H2G_04_GoAway(t *testing.T) {
	t.Parallel()
	cc, srv := scriptServer(t, &http2.ClientSettings{})
	type result struct {
		body string
		err  error
	}
	first, second := make(chan result, 1), make(chan result, 1)
	run := func(s *http2.ClientStream, out chan result) {
		a := &reply{}
		err := a.do(s, "GET /", "")
		s.Release(true)
		out <- result{a.body.String(), err}
	}
	s1 := open(t, cc)
	go run(s1, first)
	srv.await(xhttp2.FrameHeaders)
	go run(open(t, cc), second)
	srv.await(xhttp2.FrameHeaders)
	_ = srv.fr.WriteGoAway(1<<31-1, xhttp2.ErrCodeNo, nil)
	_ = srv.fr.WriteGoAway(1, xhttp2.ErrCodeNo, nil)
	if r := <-second; !errors.Is(r.err, exchange.ErrUnprocessed) {
		t.Errorf("the stream behind the last: %v", r.err)
	}
	if _, ok := cc.Open(); ok {
		t.Error("a stream was opened behind GOAWAY")
	}
	srv.head(1, false, ":status", "200")
	_ = srv.fr.WriteData(1, true, []byte("whole"))
	if r := <-first; r.err != nil || r.body != "whole" {
		t.Errorf("the stream before: %q, %v", r.body, r.err)
	}
	srv.await(xhttp2.FrameGoAway)
	within(t, "the end of the connection", cc.Done())
}

// What a server may not send fails its stream, or its connection, and never reaches the client's side.
func TestClientBadServers(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 100<<10)
	for name, tc := range map[string]struct {
		send   func(s *scripted)
		whole  bool // the connection ends, too
		reason error
	}{
		"no status":         {send: func(s *scripted) { s.head(1, true, "server", "x") }, reason: exchange.ErrBadResponse},
		"two statuses":      {send: func(s *scripted) { s.head(1, true, ":status", "200", ":status", "200") }, reason: exchange.ErrBadResponse},
		"status behind":     {send: func(s *scripted) { s.head(1, true, "server", "x", ":status", "200") }, reason: exchange.ErrBadResponse},
		"status of four":    {send: func(s *scripted) { s.head(1, true, ":status", "2000") }, reason: exchange.ErrBadResponse},
		"status 099":        {send: func(s *scripted) { s.head(1, true, ":status", "099") }, reason: exchange.ErrBadResponse},
		"101":               {send: func(s *scripted) { s.head(1, false, ":status", "101") }, reason: exchange.ErrBadResponse},
		"upper case":        {send: func(s *scripted) { s.head(1, true, ":status", "200", "Server", "x") }, reason: exchange.ErrBadResponse},
		"line feed":         {send: func(s *scripted) { s.head(1, true, ":status", "200", "server", "a\nb: c") }, reason: exchange.ErrBadResponse},
		"connection":        {send: func(s *scripted) { s.head(1, true, ":status", "200", "connection", "close") }, reason: exchange.ErrBadResponse},
		"KF-STR-04 framing": {send: func(s *scripted) { s.head(1, false, ":status", "200", "transfer-encoding", "chunked") }, reason: exchange.ErrBadResponse},
		"two lengths":       {send: func(s *scripted) { s.head(1, false, ":status", "200", "content-length", "1", "content-length", "1") }, reason: exchange.ErrBadResponse},
		"no length":         {send: func(s *scripted) { s.head(1, false, ":status", "200", "content-length", "+1") }, reason: exchange.ErrBadResponse},
		"shorter": {send: func(s *scripted) {
			s.head(1, false, ":status", "200", "content-length", "3")
			_ = s.fr.WriteData(1, true, []byte("ab"))
		}, reason: exchange.ErrBadResponse},
		"longer": {send: func(s *scripted) {
			s.head(1, false, ":status", "200", "content-length", "1")
			_ = s.fr.WriteData(1, true, []byte("ab"))
		}, reason: exchange.ErrBadResponse},
		"none":                {send: func(s *scripted) { s.head(1, true, ":status", "200", "content-length", "1") }, reason: exchange.ErrBadResponse},
		"body of 204":         {send: func(s *scripted) { s.head(1, false, ":status", "204"); _ = s.fr.WriteData(1, true, []byte("ab")) }, reason: exchange.ErrBadResponse},
		"body first":          {send: func(s *scripted) { _ = s.fr.WriteData(1, true, []byte("ab")) }, reason: exchange.ErrBadResponse},
		"interim at the end":  {send: func(s *scripted) { s.head(1, true, ":status", "103") }, reason: exchange.ErrBadResponse},
		"trailers in between": {send: func(s *scripted) { s.head(1, false, ":status", "200"); s.head(1, false, "x", "y") }, reason: exchange.ErrBadResponse},
		"status in trailers":  {send: func(s *scripted) { s.head(1, false, ":status", "200"); s.head(1, true, ":status", "200") }, reason: exchange.ErrBadResponse},
		"framing in trailers": {send: func(s *scripted) { s.head(1, false, ":status", "200"); s.head(1, true, "content-length", "1") }, reason: exchange.ErrBadResponse},
		"large head":          {send: func(s *scripted) { s.blocks(1, ":status", "200", "x", big, "y", big) }, reason: exchange.ErrBadResponse},
		"many interim heads":  {send: func(s *scripted) { s.repeat(70, func() { s.head(1, false, ":status", "103") }) }, reason: exchange.ErrBadResponse},
		"reset":               {send: func(s *scripted) { _ = s.fr.WriteRSTStream(1, xhttp2.ErrCodeInternal) }},
		"refused":             {send: func(s *scripted) { _ = s.fr.WriteRSTStream(1, xhttp2.ErrCodeRefusedStream) }, reason: exchange.ErrUnprocessed},
		"refused behind a head": {send: func(s *scripted) {
			s.head(1, false, ":status", "200")
			_ = s.fr.WriteRSTStream(1, xhttp2.ErrCodeRefusedStream)
		}},
		"push": {send: func(s *scripted) {
			_ = s.fr.WritePushPromise(xhttp2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true})
		}, whole: true},
		"head of stream 2":    {send: func(s *scripted) { s.head(2, true, ":status", "200") }, whole: true},
		"head of stream 9":    {send: func(s *scripted) { s.head(9, true, ":status", "200") }, whole: true},
		"enables push":        {send: func(s *scripted) { _ = s.fr.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingEnablePush, Val: 1}) }, whole: true},
		"window overflow":     {send: func(s *scripted) { s.repeat(2, func() { _ = s.fr.WriteWindowUpdate(0, 1<<31-1) }) }, whole: true},
		"interrupted block":   {send: func(s *scripted) { s.part(1); _ = s.fr.WritePing(false, [8]byte{}) }, whole: true},
		"flood of PING":       {send: func(s *scripted) { s.repeat(3000, func() { _ = s.fr.WritePing(false, [8]byte{}) }) }, whole: true},
		"flood of SETTINGS":   {send: func(s *scripted) { s.repeat(3000, func() { _ = s.fr.WriteSettings() }) }, whole: true},
		"flood of RST_STREAM": {send: func(s *scripted) { s.repeat(3000, func() { _ = s.fr.WriteRSTStream(1, xhttp2.ErrCodeNo) }) }, whole: true},
		"flood of empty DATA": {send: func(s *scripted) {
			s.head(1, false, ":status", "200")
			s.repeat(3000, func() { _ = s.fr.WriteData(1, false, nil) })
		}, whole: true},
		"flood of CONTINUATION":  {send: func(s *scripted) { s.part(1); s.repeat(70, func() { _ = s.fr.WriteContinuation(1, false, nil) }) }, whole: true},
		"flood of WINDOW_UPDATE": {send: func(s *scripted) { s.repeat(3000, func() { _ = s.fr.WriteWindowUpdate(1, 1) }) }, whole: true},
		"GOAWAY that goes up":    {send: func(s *scripted) { _ = s.fr.WriteGoAway(1, 0, nil); _ = s.fr.WriteGoAway(3, 0, nil) }, whole: true},
		"end":                    {send: func(s *scripted) { s.c.Close() }, whole: true, reason: http2.ErrConnClosed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cc, srv := scriptServer(t, &http2.ClientSettings{})
			s, a := open(t, cc), &reply{}
			failed := make(chan error, 1)
			go func() { failed <- a.do(s, "GET /", "") }()
			srv.await(xhttp2.FrameHeaders)
			go func() {
				for { // what the client sends must not keep it from reading
					if _, err := srv.fr.ReadFrame(); err != nil {
						return
					}
				}
			}()
			tc.send(srv)
			err := <-failed
			if err == nil || tc.reason != nil && !errors.Is(err, tc.reason) {
				t.Errorf("failed with %v", err)
			}
			s.Release(true)
			if tc.whole {
				within(t, "the end of the connection", cc.Done())
			} else if cc.Err() != nil {
				t.Errorf("the connection is over: %v", cc.Err())
			}
		})
	}
}

func (s *scripted) repeat(n int, f func()) {
	for range n {
		f()
	}
}

// part begins a field block that does not end.
func (s *scripted) part(id uint32) {
	_ = s.fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x88}})
}

// blocks sends a head in several frames.
func (s *scripted) blocks(id uint32, fields ...string) {
	s.buf.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = s.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	b := append([]byte(nil), s.buf.Bytes()...)
	_ = s.fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, BlockFragment: b[:1], EndStream: true})
	for b = b[1:]; len(b) > 16<<10; b = b[16<<10:] {
		_ = s.fr.WriteContinuation(id, false, b[:16<<10])
	}
	_ = s.fr.WriteContinuation(id, true, b)
}

// Tunnels through our own server: bytes both ways, half-close, reset, and one that is not read holds up nobody.
func TestClientTunnels(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		r := start(t, m, connecting(taken(func(c conn.Conn) {
			_, _ = io.Copy(c, c)
			_ = c.(conn.CloseWriter).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		})))
		c, err := r.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if m.prefixed {
			c = m.wrap(c)
		}
		cc := begin(t, plainConn(c), &http2.ClientSettings{StreamWindow: 64 << 10})
		dig := func() conn.Conn {
			s, a := open(t, cc), &reply{}
			if a.Head, err = s.RoundTrip([]byte("CONNECT x.test:1 HTTP/1.1\r\nHost: x.test:1\r\n\r\n"), nil, nil, false, &a.fields, a); err != nil || a.Status != 200 {
				t.Fatalf("%d, %v", a.Status, err)
			}
			tc := s.Takeover()
			t.Cleanup(func() { tc.Close() })
			_ = tc.SetDeadline(time.Now().Add(10 * time.Second))
			return tc
		}
		stalled := dig() // its echo is never read
		go func() { _, _ = stalled.Write(make([]byte, 1<<20)) }()
		for range 3 {
			tc, sent := dig(), strings.Repeat("tunnel", 100<<10)
			go func() {
				_, _ = io.WriteString(tc, sent)
				_ = tc.(conn.CloseWriter).CloseWrite()
			}()
			got, err := io.ReadAll(tc)
			if string(got) != sent || err != nil {
				t.Errorf("%d bytes came back, %v", len(got), err)
			}
			tc.Close()
		}
		stalled.Close()
		if _, err := stalled.Read(make([]byte, 1)); err == nil {
			t.Error("a closed tunnel can be read")
		}
		if st := cc.State(); st.Active != 0 || !st.Usable {
			t.Errorf("afterwards %+v", st)
		}
	})
}

// A connection that is in use and brings nothing is asked for a sign of life, and lives as long as it gives one.
func TestClientPing(t *testing.T) {
	t.Parallel()
	cc, srv := scriptServer(t, &http2.ClientSettings{PingInterval: 100 * time.Millisecond, PingTimeout: 3 * time.Second})
	s, failed := open(t, cc), make(chan error, 1)
	go func() { failed <- (&reply{}).do(s, "GET /", "") }()
	srv.await(xhttp2.FrameHeaders)
	for range 2 {
		ping, ok := srv.await(xhttp2.FramePing).(*xhttp2.PingFrame)
		if !ok {
			t.FailNow()
		}
		_ = srv.fr.WritePing(true, ping.Data)
	}
	if err := cc.Err(); err != nil {
		t.Fatal(err)
	}
	srv.await(xhttp2.FramePing) // and no answer
	if err := <-failed; !errors.Is(err, http2.ErrPingTimeout) {
		t.Errorf("failed with %v", err)
	}
	s.Release(true)
	within(t, "the end of the connection", cc.Done())
}

// A stream that is interrupted, whatever it waits for, is reset, and its connection serves on.
func TestClientInterrupt(t *testing.T) {
	t.Parallel()
	cc, srv := scriptServer(t, &http2.ClientSettings{})
	for name, tc := range map[string]struct {
		head, body string
		answer     func(id uint32)
	}{
		"head":   {"GET /", "", func(uint32) {}},
		"body":   {"GET /", "", func(id uint32) { srv.head(id, false, ":status", "200") }},
		"window": {"POST /\r\nContent-Length: 100000", strings.Repeat("x", 100000), func(uint32) {}},
	} {
		s, failed := open(t, cc), make(chan error, 1)
		go func() { failed <- (&reply{}).do(s, tc.head, tc.body) }()
		id := srv.await(xhttp2.FrameHeaders).Header().StreamID
		tc.answer(id)
		s.Interrupt()
		if err := <-failed; err == nil {
			t.Errorf("%s: no error", name)
		}
		go s.Release(false)
		if f, ok := srv.await(xhttp2.FrameRSTStream).(*xhttp2.RSTStreamFrame); !ok || f.StreamID != id || f.ErrCode != xhttp2.ErrCodeCancel {
			t.Errorf("%s: %v", name, f)
		}
	}
	if err := cc.Err(); err != nil {
		t.Error(err)
	}
}

// What the server allows is kept: no more streams, no more bytes of a body, and none of a stream that it stops.
func TestClientLimits(t *testing.T) {
	t.Parallel()
	cc, srv := scriptServer(t, &http2.ClientSettings{}, xhttp2.Setting{ID: xhttp2.SettingMaxConcurrentStreams, Val: 1}, xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 10})
	s, failed := open(t, cc), make(chan error, 1)
	if _, ok := cc.Open(); ok {
		t.Error("a second stream")
	}
	go func() { failed <- (&reply{}).do(s, "POST /\r\nContent-Length: 25", "0123456789abcdefghijklmno") }()
	srv.await(xhttp2.FrameHeaders)
	for i, want := range []string{"0123456789", "abcde", "fghijklmno"} {
		f, ok := srv.await(xhttp2.FrameData).(*xhttp2.DataFrame)
		if !ok || string(f.Data()) != want || f.StreamEnded() != (i == 2) {
			t.Fatalf("%v", f)
		}
		_ = srv.fr.WriteWindowUpdate(1, uint32([]int{5, 10, 1}[i]))
	}
	srv.head(1, true, ":status", "200")
	if err := <-failed; err != nil {
		t.Error(err)
	}
	s.Release(true)
	if _, ok := cc.Open(); !ok {
		t.Error("no stream after the first")
	}
}
