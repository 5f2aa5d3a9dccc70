package tunnel_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/tunnel"
)

// echo serves tunnels by sending back what comes.
func echo(context.Context, *tunnel.Ask) (tunnel.Accepted, error) {
	return tunnel.Accepted{Serve: func(c conn.Conn) {
		_, _ = io.Copy(c, c)
		_ = c.(conn.CloseWriter).CloseWrite()
	}}, nil
}

// rig is both ends.
type rig struct {
	*site
	pool *tunnel.Pool[string]
	peer tunnel.Peer
}

// connect makes both ends, with mutual TLS over the given protocols.
func connect(t testing.TB, cfg tunnel.ServerConfig, l tunnel.Limits, protocols ...string) *rig {
	t.Helper()
	if len(protocols) == 0 {
		protocols = []string{"h2", "http/1.1"}
	}
	a, k := newAuthority(t), clock(t)
	s := serve(t, k, cfg, a.mutual(workerURI, routerURI, protocols...))
	own := a.mutual(routerURI, workerURI, "h2", "http/1.1")
	p := tunnel.NewPool[string](l, k)
	t.Cleanup(p.Close)
	return &rig{site: s, pool: p, peer: tunnel.Peer{Addr: s.addr, TLS: func() *tls.Config { return own }}}
}

func (r *rig) open(t testing.TB, key string) *tunnel.Conn {
	t.Helper()
	c, err := r.try(t.Context(), key, "sandbox:80")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

func (r *rig) try(ctx context.Context, key, authority string, fields ...tunnel.Field) (*tunnel.Conn, error) {
	return r.pool.Open(ctx, key, r.peer, tunnel.Request{Authority: authority, Fields: fields})
}

// exchanges sends a text through a tunnel that echoes.
func exchanges(t testing.TB, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("%q, %v", got, err)
	}
}

// One connection carries many tunnels, each with an end of its own.
func TestShared(t *testing.T) {
	r := connect(t, tunnel.ServerConfig{Accept: echo}, tunnel.Limits{})
	var all []*tunnel.Conn
	for range 50 {
		all = append(all, r.open(t, "a"))
	}
	for i, c := range all {
		exchanges(t, c, fmt.Sprint("tunnel ", i))
	}
	for _, c := range all[:25] {
		_, _ = io.WriteString(c, "last")
		_ = c.CloseWrite()
		if got, err := io.ReadAll(c); string(got) != "last" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		_ = c.Close()
	}
	exchanges(t, all[25], "still there")
	if n := r.accepted.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	if s := r.pool.Stats(); s != (tunnel.Stats{Peers: 1, Connections: 1, Tunnels: 25}) {
		t.Errorf("%+v", s)
	}
}

// What has another key never shares a connection.
func TestKeys(t *testing.T) {
	r := connect(t, tunnel.ServerConfig{Accept: echo}, tunnel.Limits{})
	exchanges(t, r.open(t, "a"), "x")
	exchanges(t, r.open(t, "b"), "x")
	if n := r.accepted.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
}

// A full connection is joined by another one; a full peer refuses.
func TestI5_Full(t *testing.T) {
	r := connect(t, tunnel.ServerConfig{Accept: echo, Streams: 3}, tunnel.Limits{Connections: 2, Peers: 1})
	for range 6 {
		exchanges(t, r.open(t, "a"), "x")
	}
	if n := r.accepted.Load(); n != 2 {
		t.Errorf("%d connections for 6 tunnels of 3 each", n)
	}
	if _, err := r.try(t.Context(), "a", "h:1"); !errors.Is(err, tunnel.ErrFull) {
		t.Errorf("seventh tunnel: %v", err)
	}
	if _, err := r.try(t.Context(), "b", "h:1"); !errors.Is(err, tunnel.ErrFull) {
		t.Errorf("second peer: %v", err)
	}
}

// A peer without HTTP/2 gets a connection for each tunnel.
func TestHTTP1(t *testing.T) {
	r := connect(t, tunnel.ServerConfig{Accept: echo}, tunnel.Limits{}, "http/1.1")
	for range 3 {
		c := r.open(t, "a")
		exchanges(t, c, "hello")
		_ = c.CloseWrite()
		if got, err := io.ReadAll(c); len(got) > 0 || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		_ = c.Close()
	}
	if n := r.accepted.Load(); n != 3 {
		t.Errorf("%d connections", n)
	}
}

// A forced connection ends what is served inside its tunnels, also if that waits again when it is woken.
func TestServedIsForced(t *testing.T) {
	for _, protocol := range bothProtocols {
		t.Run(protocol, func(t *testing.T) {
			began, ended := make(chan struct{}), make(chan error, 1)
			r := connect(t, tunnel.ServerConfig{Accept: func(context.Context, *tunnel.Ask) (tunnel.Accepted, error) {
				return tunnel.Accepted{Serve: func(c conn.Conn) {
					close(began)
					for {
						_, err := c.Read(make([]byte, 1))
						if !errors.Is(err, os.ErrDeadlineExceeded) || c.SetReadDeadline(time.Time{}) != nil {
							ended <- err
							return
						}
					}
				}}, nil
			}}, tunnel.Limits{}, protocol)
			c := r.open(t, "a")
			defer c.Close()
			within(t, "the beginning", began)
			r.live.Force()
			if err := within(t, "the end", ended); err == nil {
				t.Error("no error")
			}
		})
	}
}

var bothProtocols = []string{"h2", "http/1.1"}

// A refusal arrives as it was given, and so does what was asked.
func TestRefusal(t *testing.T) {
	for _, protocol := range bothProtocols {
		t.Run(protocol, func(t *testing.T) {
			asked := make(chan string, 10)
			accept := func(_ context.Context, a *tunnel.Ask) (tunnel.Accepted, error) {
				asked <- fmt.Sprint(a.Authority, a.Values("ATE-Target-Actor"), a.Conn.Identity)
				switch a.Authority {
				case "stale:80":
					return tunnel.Accepted{}, &tunnel.Refusal{Status: 421, Fields: []tunnel.Field{{Name: "X-Ate-Assignment-Stale", Value: "true"}}, Body: "misdirected request"}
				case "long:80":
					return tunnel.Accepted{}, &tunnel.Refusal{Status: 400, Body: string(bytes.Repeat([]byte("x"), 10000))}
				}
				return tunnel.Accepted{}, errors.New("secret reason")
			}
			r := connect(t, tunnel.ServerConfig{Accept: accept}, tunnel.Limits{}, protocol)
			_, err := r.try(t.Context(), "a", "stale:80", tunnel.Field{Name: "ate-target-actor", Value: "demo/a"})
			var refused *tunnel.Refusal
			if !errors.As(err, &refused) || refused.Status != 421 || refused.Get("x-ate-assignment-stale") != "true" || refused.Body != "misdirected request" {
				t.Errorf("%v, %+v", err, refused)
			}
			if got := within(t, "the request", asked); got != "stale:80[demo/a]"+routerURI {
				t.Errorf("asked %q", got)
			}
			if _, err = r.try(t.Context(), "a", "long:80"); !errors.As(err, &refused) || refused.Status != 400 || len(refused.Body) != 4<<10 {
				t.Errorf("%.100v", err)
			}
			if _, err = r.try(t.Context(), "a", "other:80"); !errors.As(err, &refused) || refused.Status != 502 || refused.Body != "bad gateway" {
				t.Errorf("%v", err)
			}
			if protocol == "h2" && r.accepted.Load() != 1 {
				t.Errorf("%d connections for refusals", r.accepted.Load())
			}
		})
	}
}

// Bad requests are not sent.
func TestBadRequest(t *testing.T) {
	r := connect(t, tunnel.ServerConfig{Accept: echo}, tunnel.Limits{})
	for _, q := range []tunnel.Request{
		{Authority: "h"},
		{Authority: "h:0"},
		{Authority: "h:1\r\nX: y"},
		{Authority: "h:1", Fields: []tunnel.Field{{Name: "a b", Value: "c"}}},
		{Authority: "h:1", Fields: []tunnel.Field{{Name: "a", Value: "c\r\nd: e"}}},
	} {
		if _, err := r.pool.Open(t.Context(), "a", r.peer, q); err == nil {
			t.Errorf("%+v was sent", q)
		}
	}
	if r.accepted.Load() != 0 {
		t.Error("something was dialed")
	}
}

// Who is somebody else gets no tunnel, and opens none.
func TestWrongPeer(t *testing.T) {
	a, k := newAuthority(t), clock(t)
	s := serve(t, k, tunnel.ServerConfig{Accept: echo}, a.mutual("spiffe://test/other", routerURI, "h2"))
	own := a.mutual(routerURI, workerURI, "h2")
	p := tunnel.NewPool[string](tunnel.Limits{}, k)
	defer p.Close()
	_, err := p.Open(t.Context(), "a", tunnel.Peer{Addr: s.addr, TLS: func() *tls.Config { return own }}, tunnel.Request{Authority: "h:1"})
	if !errors.Is(err, conn.ErrTLS) {
		t.Errorf("wrong server: %v", err)
	}
	other := a.mutual("spiffe://test/intruder", "spiffe://test/other", "h2")
	_, err = p.Open(t.Context(), "b", tunnel.Peer{Addr: s.addr, TLS: func() *tls.Config { return other }}, tunnel.Request{Authority: "h:1"})
	if err == nil {
		t.Error("an intruder has a tunnel")
	}
}

// Cut ends every tunnel of a key, at both ends, and no other.
func TestCut(t *testing.T) {
	for _, protocol := range bothProtocols {
		t.Run(protocol, func(t *testing.T) {
			r := connect(t, tunnel.ServerConfig{Accept: echo}, tunnel.Limits{}, protocol)
			a1, a2, b := r.open(t, "a"), r.open(t, "a"), r.open(t, "b")
			for _, c := range []*tunnel.Conn{a1, a2, b} {
				exchanges(t, c, "x")
			}
			if n := r.pool.Cut("a"); n != 2 {
				t.Errorf("%d tunnels were cut", n)
			}
			for _, c := range []*tunnel.Conn{a1, a2} {
				if _, err := c.Read(make([]byte, 1)); err == nil {
					t.Error("a cut tunnel goes on")
				}
			}
			exchanges(t, b, "x")
			exchanges(t, r.open(t, "a"), "again")
		})
	}
}

// Cut ends who is about to open a tunnel, too; so does the caller's context, which the other end hears of.
func TestOpeningEnds(t *testing.T) {
	for _, protocol := range bothProtocols {
		t.Run(protocol, func(t *testing.T) {
			asked, gone := make(chan struct{}, 10), make(chan struct{}, 10)
			accept := func(ctx context.Context, _ *tunnel.Ask) (tunnel.Accepted, error) {
				asked <- struct{}{}
				<-ctx.Done()
				gone <- struct{}{}
				return tunnel.Accepted{}, ctx.Err()
			}
			r := connect(t, tunnel.ServerConfig{Accept: accept}, tunnel.Limits{}, protocol)
			result := make(chan error, 1)
			ctx, cancel := context.WithCancel(t.Context())
			go func() { _, err := r.try(ctx, "a", "h:1"); result <- err }()
			within(t, "the request", asked)
			cancel()
			if err := within(t, "the end", result); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled: %v", err)
			}
			within(t, "the departure", gone)
			go func() { _, err := r.try(context.Background(), "a", "h:1"); result <- err }()
			within(t, "the request", asked)
			r.pool.Cut("a")
			if err := within(t, "the end", result); !errors.Is(err, tunnel.ErrClosed) {
				t.Errorf("cut: %v", err)
			}
			within(t, "the departure", gone)
		})
	}
}

// A connection that its peer has closed is replaced without anybody noticing.
func TestPeerRestarts(t *testing.T) {
	r := connect(t, tunnel.ServerConfig{Accept: echo}, tunnel.Limits{})
	for range 5 {
		c := r.open(t, "a")
		exchanges(t, c, "x")
		r.kick()
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("the tunnel goes on")
		}
	}
	exchanges(t, r.open(t, "a"), "x")
}

// A connection that the peer drains is not used for new tunnels; the old ones go on.
func TestPeerDrains(t *testing.T) {
	r := connect(t, tunnel.ServerConfig{Accept: echo}, tunnel.Limits{})
	old := r.open(t, "a")
	exchanges(t, old, "x")
	r.live.Drain(drain.Prompt)
	until(t, "another connection is opened", func() bool {
		c := r.open(t, "a")
		defer c.Close()
		exchanges(t, c, "x")
		return r.accepted.Load() > 1
	})
	exchanges(t, old, "still")
}

// A connection without tunnels is closed after a while.
func TestIdle(t *testing.T) {
	r := connect(t, tunnel.ServerConfig{Accept: echo}, tunnel.Limits{IdleTimeout: 200 * time.Millisecond})
	c := r.open(t, "a")
	exchanges(t, c, "x")
	_ = c.Close()
	until(t, "the connection is closed", func() bool { return r.pool.Stats().Connections == 0 })
	exchanges(t, r.open(t, "b"), "x") // and its key is forgotten
	if s := r.pool.Stats(); s.Peers != 1 {
		t.Errorf("%+v", s)
	}
}

// Tunnels that nobody reads take nothing from those that are read, in either direction.
func TestStalled(t *testing.T) {
	const tunnels, stalled = 200, 100
	flood := bytes.Repeat([]byte("x"), 256<<10)
	accept := func(_ context.Context, a *tunnel.Ask) (tunnel.Accepted, error) {
		if a.Authority == "echo:1" {
			return echo(context.Background(), a)
		}
		return tunnel.Accepted{Serve: func(c conn.Conn) { // reads nothing, and writes more than there is room for
			_, _ = c.Write(flood)
		}}, nil
	}
	r := connect(t, tunnel.ServerConfig{Accept: accept}, tunnel.Limits{})
	var ends sync.WaitGroup
	var idle []*tunnel.Conn
	for range stalled {
		c, err := r.try(t.Context(), "a", "stalled:1")
		if err != nil {
			t.Fatal(err)
		}
		idle = append(idle, c)
		ends.Go(func() { _, _ = c.Write(flood) })
	}
	var moving sync.WaitGroup
	for range tunnels - stalled {
		c, err := r.try(t.Context(), "a", "echo:1")
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		moving.Go(func() {
			defer c.Close()
			go func() { _, _ = c.Write(flood); _ = c.CloseWrite() }()
			if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, flood) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	moving.Wait()
	if n := r.accepted.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	for _, c := range idle {
		_ = c.Close()
	}
	ends.Wait()
}

// A relayed tunnel passes half-close and failure on, and is bounded.
func TestRelayed(t *testing.T) {
	type outcome struct {
		o       exchange.Outcome
		in, out int64
	}
	ended := make(chan outcome, 10)
	fars := make(chan *conn.MemoryConn, 10)
	accept := func(context.Context, *tunnel.Ask) (tunnel.Accepted, error) {
		near, other := conn.Pipe()
		fars <- other
		return tunnel.Accepted{To: near}, nil
	}
	cfg := tunnel.ServerConfig{Accept: accept, HalfClosed: 2 * time.Second, Ended: func(x *exchange.Exchange) {
		ended <- outcome{x.Record.Outcome, x.Record.BytesIn, x.Record.BytesOut}
	}}
	for _, protocol := range bothProtocols {
		t.Run(protocol, func(t *testing.T) {
			r := connect(t, cfg, tunnel.Limits{}, protocol)
			c := r.open(t, "a")
			far := <-fars
			_, _ = io.WriteString(c, "request")
			_ = c.CloseWrite()
			if got, err := io.ReadAll(far); string(got) != "request" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
			_, _ = io.WriteString(far, "answer")
			_ = far.CloseWrite()
			if got, err := io.ReadAll(c); string(got) != "answer" || err != nil {
				t.Errorf("%q, %v", got, err)
			}
			if got := within(t, "the end", ended); got != (outcome{exchange.OutcomeUpgraded, 7, 6}) {
				t.Errorf("%+v", got)
			}
			c = r.open(t, "a")
			_ = (<-fars).Abort()
			if _, err := c.Read(make([]byte, 1)); err == nil || err == io.EOF {
				t.Errorf("after a reset: %v", err)
			}
			if got := within(t, "the end", ended); got.o != exchange.OutcomeAborted {
				t.Errorf("%+v", got)
			}
			c = r.open(t, "a")
			defer func() { _ = (<-fars).Close() }()
			_ = c.CloseWrite()
			if got := within(t, "the end", ended); got.o != exchange.OutcomeTimeout {
				t.Errorf("half-closed: %+v", got)
			}
		})
	}
}
