package http3_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	qhttp3 "github.com/quic-go/quic-go/http3"

	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// A client that leaves, in whichever way, is told to the exchange.
func TestDeparture(t *testing.T) {
	for name, leave := range map[string]func(p *peer, st *quic.Stream){
		"STOP_SENDING":          func(_ *peer, st *quic.Stream) { st.CancelRead(0x10c) },
		"reset":                 func(_ *peer, st *quic.Stream) { st.CancelWrite(0x10c) },
		"both":                  func(_ *peer, st *quic.Stream) { st.CancelWrite(0x10c); st.CancelRead(0x10c) },
		"end of the connection": func(p *peer, _ *quic.Stream) { _ = p.q.CloseWithError(0x100, "") },
	} {
		for what, wait := range map[string]func(x *exchange.Exchange) error{
			"nothing":   func(x *exchange.Exchange) error { <-x.Departed(); return nil },
			"a context": func(x *exchange.Exchange) error { <-x.Context().Done(); return context.Cause(x.Context()) },
			"the body": func(x *exchange.Exchange) error {
				_, err := readAll(x)
				<-x.Departed()
				return err
			},
		} {
			if name == "STOP_SENDING" && what == "the body" {
				continue // it goes on: what the client sends it may send
			}
			t.Run(name+" while it waits for "+what, func(t *testing.T) {
				began, ended := make(chan struct{}), make(chan exchange.Outcome, 1)
				r := start(t, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
					close(began)
					err := wait(x)
					x.Fail(errors.Join(err, exchange.ErrDeparted))
					ended <- x.Record.Outcome
					return nil
				})))
				p := dial(t, r)
				st := p.send(join(head("POST"), frame(0, []byte("part"))), false)
				within(t, "the request", began)
				leave(p, st)
				if o := within(t, "the departure", ended); o != exchange.OutcomeDisconnected {
					t.Errorf("outcome %v", o)
				}
			})
		}
	}
}

// TestLimits: each time limit ends what it is for, and tells which one it was.
func TestLimits(t *testing.T) {
	type ending struct {
		code  exchange.Code
		limit string
	}
	ends := make(chan ending, 1)
	note := func(x *exchange.Exchange, err error) {
		x.Fail(err)
		ends <- ending{x.Record.Code, x.Record.Limit}
	}
	set := settings(refusing{
		serve: func(x *exchange.Exchange) error {
			if string(x.Request.Path) == "/write" {
				x.Response.Status = 200
				for {
					if err := x.Send(make([]byte, 64<<10), false); err != nil {
						note(x, err)
						return nil
					}
				}
			}
			_, err := readAll(x)
			note(x, err)
			return nil
		},
		refuse: func(x *exchange.Exchange, err *exchange.Error) { note(x, err) },
	})
	set.HeaderTimeout, set.BodyIdleTimeout, set.WriteIdleTimeout, set.KeepAliveTimeout = 300*time.Millisecond, 300*time.Millisecond, 300*time.Millisecond, time.Minute
	r := start(t, set)
	for _, tc := range []struct {
		name string
		in   []byte
		want ending
		o    outcome
	}{
		{"head", get()[:10], ending{exchange.CodeHeaderTimeout, "header_timeout"}, outcome{status: "408"}},
		{"what is behind the head of a GET", get(), ending{exchange.CodeHeaderTimeout, "header_timeout"}, outcome{status: "408"}},
		{"body", join(head("POST"), frame(0, []byte("part"))), ending{exchange.CodeBodyTimeout, "body_idle_timeout"}, outcome{status: "408"}},
		{"frame of the body", join(head("POST"), frame(0, make([]byte, 100))[:50]), ending{exchange.CodeBodyTimeout, "body_idle_timeout"}, outcome{status: "408"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := dial(t, r)
			got := p.await(p.send(tc.in, false))
			if got.body = ""; got != tc.o {
				t.Errorf("%+v", got)
			}
			if e := within(t, "the end", ends); e != tc.want {
				t.Errorf("%+v", e)
			}
		})
	}
	t.Run("write", func(t *testing.T) {
		p := dial(t, r)
		p.send(frame(1, section(":method", "GET", ":scheme", "https", ":authority", "h", ":path", "/write")), true)
		want := ending{exchange.CodeWriteTimeout, "write_idle_timeout"}
		if e := within(t, "the end", ends); e != want {
			t.Errorf("%+v", e)
		}
	})
}

// refusing is a handler that sees refusals, too.
type refusing struct {
	serve  func(x *exchange.Exchange) error
	refuse func(x *exchange.Exchange, err *exchange.Error)
}

func (h refusing) Serve(x *exchange.Exchange) error                 { return h.serve(x) }
func (h refusing) Refuse(x *exchange.Exchange, err *exchange.Error) { h.refuse(x, err) }

// An idle connection ends at keepalive_timeout, properly.
func TestKeepAlive(t *testing.T) {
	set := settings(echo)
	set.KeepAliveTimeout = 2 * time.Second // in which the request has to come
	r := start(t, set)
	p := dial(t, r)
	if got := p.await(p.send(get(), true)); got.status != "200" {
		t.Fatalf("%+v", got)
	}
	if code := p.over(); code != 0x100 {
		t.Errorf("ended with %#x", code)
	}
}

// A drain lets what runs end, tells the client to open nothing more, and ends the connection then. Gently it waits for one
// more request.
func TestDrain(t *testing.T) {
	for _, mode := range []drain.Mode{drain.Prompt, drain.Gentle} {
		t.Run(mode.String(), func(t *testing.T) {
			began, release := make(chan struct{}, 1), make(chan struct{})
			r := start(t, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
				if string(x.Request.Method) == "POST" {
					began <- struct{}{}
					<-release
				}
				return answer(x, 200, "whole")
			})))
			p := dial(t, r)
			running := p.send(head("POST"), true)
			within(t, "the request", began)
			r.live.Drain(mode)
			if mode == drain.Gentle {
				if got := p.await(p.send(get(), true)); got.status != "200" {
					t.Errorf("one more request: %+v", got)
				}
			}
			away := p.awaitGoAway(2)
			close(release)
			if got := p.await(running); got.status != "200" || got.body != "whole" {
				t.Errorf("%+v", got)
			}
			if len(away) != 2 || away[0] != 1<<62-4 || away[1] != map[drain.Mode]uint64{drain.Prompt: 4, drain.Gentle: 8}[mode] {
				t.Errorf("GOAWAY %v", away)
			}
			if code := p.over(); code != 0x100 {
				t.Errorf("ended with %#x", code)
			}
		})
	}
}

// Streams that come behind the last GOAWAY were not looked at, and the client is told so.
func TestRejected(t *testing.T) {
	release := make(chan struct{})
	began := make(chan struct{}, 9)
	r := start(t, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		began <- struct{}{}
		<-release
		return answer(x, 200, "")
	})))
	p := dial(t, r)
	running := p.send(get(), true)
	within(t, "the request", began)
	r.live.Drain(drain.Prompt)
	p.awaitGoAway(2)
	if got := p.await(p.send(get(), true)); got.stream != 0x10b {
		t.Errorf("%+v", got)
	}
	close(release)
	if got := p.await(running); got.status != "200" {
		t.Errorf("%+v", got)
	}
}

// Force ends what runs at once, on both sides.
func TestForce(t *testing.T) {
	began, ended := make(chan struct{}), make(chan error, 1)
	r := start(t, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		close(began)
		<-x.Context().Done()
		ended <- context.Cause(x.Context())
		return context.Cause(x.Context())
	})))
	p := dial(t, r)
	p.send(get(), true)
	within(t, "the request", began)
	r.live.Force()
	if err := within(t, "the end", ended); !errors.Is(err, exchange.ErrForced) {
		t.Error(err)
	}
	p.over()
}

// TestKF_H2G_08: taking streams back again and again costs the client its connection, and is recorded; never do more
// handlers run than streams are allowed.
func TestKF_H2G_08(t *testing.T) {
	var mu sync.Mutex
	running, most := 0, 0
	recorded := make(chan exchange.Code, 4)
	r := start(t, settings(refusing{
		serve: func(x *exchange.Exchange) error {
			mu.Lock()
			running++
			most = max(most, running)
			mu.Unlock()
			<-x.Departed()
			mu.Lock()
			running--
			mu.Unlock()
			return exchange.ErrDeparted
		},
		refuse: func(_ *exchange.Exchange, err *exchange.Error) { recorded <- err.Code },
	}))
	p := dial(t, r)
	opened := 0
	for ; opened < 20_000; opened++ {
		st, err := p.q.OpenStreamSync(p.q.Context())
		if err != nil {
			break
		}
		_, _ = st.Write(get())
		st.CancelRead(0x10c)
		st.CancelWrite(0x10c)
	}
	if code := p.over(); code != 0x107 {
		t.Errorf("ended with %#x after %d streams", code, opened)
	}
	if code := within(t, "the record", recorded); code != exchange.CodeFlood {
		t.Errorf("recorded as %s", code)
	}
	if most > 250 {
		t.Errorf("%d handlers at once", most)
	}
}

// No more requests run at once on a connection than are allowed, however many are wanted.
func TestStreamLimit(t *testing.T) {
	began, release := make(chan struct{}, 1000), make(chan struct{})
	r := start(t, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		began <- struct{}{}
		<-release
		return answer(x, 200, "")
	})))
	p := dial(t, r)
	n := 0
	for ; n < 1000; n++ {
		st, err := p.q.OpenStream()
		if err != nil {
			break
		}
		_, _ = st.Write(get())
		_ = st.Close()
	}
	if n != 250 {
		t.Errorf("%d streams could be opened", n)
	}
	for range n {
		within(t, "a request", began)
	}
	close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := p.q.OpenStreamSync(ctx); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// Clients prove their address when it is crowded, and are refused when there is no room.
func TestAdmission(t *testing.T) {
	r := start(t, settings(echo))
	r.crowded.Store(true)
	if resp, _ := do(t, client(t), request(t, "GET", "https://"+r.addr, nil)); resp.StatusCode != 200 {
		t.Errorf("%d", resp.StatusCode)
	}
	r.refuse.Store(true)
	_, err := client(t).Do(request(t, "GET", "https://"+r.addr, nil))
	var refused *quic.TransportError
	if !errors.As(err, &refused) || refused.ErrorCode != quic.ConnectionRefused {
		t.Errorf("refused with %v", err)
	}
	r.refuse.Store(false)
	r.tls.Store(nil)
	if _, err := client(t).Do(request(t, "GET", "https://"+r.addr, nil)); err == nil {
		t.Error("served without a certificate")
	}
	within(t, "the count of the failed handshake", r.failed)
}

// deaf is a socket that only sends.
type deaf struct {
	net.PacketConn
	sent chan struct{}
	once sync.Once
}

func (d *deaf) WriteTo(b []byte, to net.Addr) (int, error) {
	defer d.once.Do(func() { close(d.sent) })
	return d.PacketConn.WriteTo(b, to)
}

func (d *deaf) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		if n, from, err := d.PacketConn.ReadFrom(b); err != nil {
			return n, from, err
		}
	}
}

// Clients that may be at forged addresses hold no more than 64 handshakes; the others prove theirs first.
func TestRetry(t *testing.T) {
	const most = 64
	r := start(t, settings(echo))
	r.handshake.Store(int64(time.Minute)) // none gives its place up
	ctx, cancel := context.WithCancel(t.Context())
	var dialing sync.WaitGroup
	defer dialing.Wait()
	defer cancel()
	to, err := net.ResolveUDPAddr("udp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	var all []*deaf
	for range most + 10 {
		pc, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		d := &deaf{PacketConn: pc, sent: make(chan struct{})}
		all = append(all, d)
		dialing.Go(func() {
			defer pc.Close()
			if _, err := quic.Dial(ctx, d, to, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h3"}}, nil); err == nil {
				t.Error("connected without an answer")
			}
		})
	}
	for _, d := range all {
		within(t, "the first packet", d.sent)
	}
	if resp, _ := do(t, client(t), request(t, "GET", "https://"+r.addr, nil)); resp.StatusCode != 200 {
		t.Errorf("%d", resp.StatusCode)
	}
	for end := time.Now().Add(10 * time.Second); r.admitted.Load() < most+1 && time.Now().Before(end); {
		time.Sleep(time.Millisecond) // the first packet of one may have been lost in the crowd: it is sent again
	}
	if n := r.admitted.Load(); n != most+1 {
		t.Errorf("%d clients were admitted", n)
	}
}

// There is no early data: a resumed session sends its request after the handshake.
func TestNoEarlyData(t *testing.T) {
	r := start(t, settings(echo))
	cache := tls.NewLRUClientSessionCache(4)
	for i := range 2 {
		tr := &qhttp3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ClientSessionCache: cache, ServerName: "gateway.test"}}
		req := request(t, qhttp3.MethodGet0RTT, "https://"+r.addr, nil)
		resp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if !resp.TLS.HandshakeComplete || resp.TLS.DidResume != (i == 1) {
			t.Errorf("%d: complete %t, resumed %t", i, resp.TLS.HandshakeComplete, resp.TLS.DidResume)
		}
		_ = tr.Close()
	}
}

// Many requests at once on one connection, with bodies both ways.
func TestConcurrent(t *testing.T) {
	r := start(t, settings(echo))
	c := client(t)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			body := strings.Repeat(fmt.Sprint(i), 5_000)
			req, _ := http.NewRequestWithContext(t.Context(), "POST", "https://"+r.addr+"/", strings.NewReader(body))
			resp, err := c.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			if err != nil || !strings.Contains(string(got), body) {
				t.Errorf("%v: %.100q", err, got)
			}
		})
	}
	wg.Wait()
	if n := r.admitted.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// TestKF_STR_13: what a client does not take is not read from the backend and stored: the handler waits.
func TestKF_STR_13(t *testing.T) {
	const window, piece = 64 << 10, 16 << 10
	var sent atomic.Int64
	r := start(t, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		x.Response.Status = 200
		for range 64 {
			if err := x.Send(make([]byte, piece), false); err != nil {
				return err
			}
			sent.Add(piece)
		}
		return x.Send(nil, true)
	})))
	q, err := quic.DialAddr(t.Context(), r.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h3"}}, &quic.Config{
		InitialStreamReceiveWindow: window, MaxStreamReceiveWindow: window,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = q.CloseWithError(0x100, "") }()
	p := &peer{t, q}
	st := p.send(get(), true)
	for end := time.Now().Add(10 * time.Second); sent.Load() < window-2*piece; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("only %d bytes are sent", sent.Load())
		}
	}
	time.Sleep(100 * time.Millisecond) // for what should not come
	if n := sent.Load(); n > window+piece {
		t.Errorf("%d bytes are sent to a client with room for %d", n, window)
	}
	if got := p.await(st); got.status != "200" || len(got.body) != 64*piece {
		t.Errorf("%d bytes with status %s", len(got.body), got.status)
	}
}
