package tunnel

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// Errors of Open, beside *Refusal and conn's ErrResolve, ErrConnect and ErrTLS.
var (
	// ErrFull is a pool with too many peers, or a peer with too many connections and streams.
	ErrFull = errors.New("no room for another tunnel")
	// ErrClosed is a pool that was closed, or a peer that was cut meanwhile.
	ErrClosed = errors.New("tunnels were closed")
)

// Peer says how another process is reached.
type Peer struct {
	Addr string // host:port, or unix:/path
	// TLS is asked for each connection. It must verify who the peer is, exactly (mutual.TLS, for instance): a connection
	// is used for every tunnel of its key. It offers h2, and http/1.1 if that is to be spoken too. nil is clear text and HTTP/2, for
	// tests.
	TLS func() *tls.Config
	// HTTP1 has HTTP/1.1 spoken in clear text.
	HTTP1 bool
	// Dial replaces the kernel's network; nil dials Addr.
	Dial func(ctx context.Context) (net.Conn, error)
}

// Limits bound a pool. Zero values are the defaults.
type Limits struct {
	Peers          int           // keys with connections; default 4096
	Connections    int           // of one peer; default 16
	Streams        int           // of a connection, if the peer allows as many; default 1000. Then another connection is opened
	ConnectTimeout time.Duration // name, connection, handshake and settings; default 5 s
	IdleTimeout    time.Duration // a connection without tunnels is closed after it; default 5 s
	PingInterval   time.Duration // a connection with tunnels that is silent is asked for a sign of life; default 15 s
}

func (l Limits) withDefaults() Limits {
	l.Peers, l.Connections, l.Streams = or(l.Peers, 4096), or(l.Connections, 16), or(l.Streams, 1000)
	l.ConnectTimeout, l.IdleTimeout = or(l.ConnectTimeout, 5*time.Second), or(l.IdleTimeout, 5*time.Second)
	l.PingInterval = or(l.PingInterval, 15*time.Second)
	return l
}

func or[T int | time.Duration](v, def T) T {
	if v <= 0 {
		return def
	}
	return v
}

// Pool keeps connections to peers by a key of the caller's: whatever must not share a connection has another key. It lives as
// long as the process. Safe for concurrent use.
type Pool[K comparable] struct {
	limits Limits
	clock  *conn.Clock

	mu     sync.Mutex // guards the fields below
	peers  map[K]*peer
	swept  time.Time // when peers without connections were looked for last
	closed bool
}

// peer is the connections of one key.
type peer struct {
	h2  *http2.Pool
	h1  *http1.Pool
	one bool            // HTTP/1.1 is spoken without asking
	ctx context.Context // ends when its tunnels are to end
	cut context.CancelCauseFunc

	// guarded by the pool's lock
	open   map[*Conn]struct{}
	asking int                  // who opens a tunnel
	asked  map[*asking]struct{} // those that wait for the answer
}

// NewPool returns an empty pool.
func NewPool[K comparable](l Limits, clock *conn.Clock) *Pool[K] {
	return &Pool[K]{limits: l.withDefaults(), clock: clock, peers: make(map[K]*peer)}
}

// Open opens a tunnel: on a connection to the peer of the key that has room, or on a new one. to describes the peer, and is
// used when the key is not known. ctx bounds the opening alone. A shared connection that ends before the peer has answered is
// replaced by a new one, once: nothing of the tunnel has been sent.
func (p *Pool[K]) Open(ctx context.Context, key K, to Peer, r Request) (*Conn, error) {
	head, err := r.appendHead(nil)
	if err != nil {
		return nil, err
	}
	pe, err := p.enter(key, to)
	if err != nil {
		return nil, err
	}
	defer p.leave(pe)
	ask := &asking{ctx: ctx, peer: pe.ctx, clock: p.clock, within: r.Within}
	for fresh := false; ; fresh = true {
		up, err := pe.get(ask, fresh)
		if err != nil {
			return nil, ask.reason(err)
		}
		down, err := p.roundTrip(pe, ask, up, head)
		switch {
		case err == nil:
			return p.hold(pe, down, up)
		case fresh, !up.Reused(), up.Progress() == exchange.Answered, ctx.Err() != nil, errors.Is(err, ErrSlow), errors.As(err, new(*Refusal)):
			up.Release(false)
			return nil, ask.reason(err)
		}
		up.Release(false)
	}
}

// enter returns the peer of a key, and counts who asks.
func (p *Pool[K]) enter(key K, to Peer) (*peer, error) {
	pe, unused, err := p.find(key, to)
	for _, old := range unused {
		old.close()
	}
	return pe, err
}

// find is enter; it also returns peers that are forgotten, since a new one is added.
func (p *Pool[K]) find(key K, to Peer) (pe *peer, unused []*peer, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, ErrClosed
	}
	if pe = p.peers[key]; pe == nil {
		unused = p.sweep()
		if len(p.peers) >= p.limits.Peers {
			return nil, unused, ErrFull
		}
		pe = p.newPeer(to)
		p.peers[key] = pe
	}
	pe.asking++
	return pe, unused, nil
}

// sweep takes peers out that have no connection any more, if it was not done a moment ago. The lock is held.
func (p *Pool[K]) sweep() (unused []*peer) {
	now := time.Now()
	if now.Sub(p.swept) < p.limits.IdleTimeout && len(p.peers) < p.limits.Peers {
		return nil
	}
	p.swept = now
	for key, pe := range p.peers {
		if pe.asking == 0 && len(pe.open) == 0 && pe.h2.Stats().Open+pe.h1.Stats().Open == 0 {
			delete(p.peers, key)
			unused = append(unused, pe)
		}
	}
	return unused
}

// close ends what is idle, and the rest when it is.
func (pe *peer) close() {
	pe.h2.Close()
	pe.h1.Close()
}

func (p *Pool[K]) newPeer(to Peer) *peer {
	l := &p.limits
	ctx, cut := context.WithCancelCause(context.Background())
	d := &conn.Dialer{Addr: to.Addr, TLS: to.TLS, Timeout: l.ConnectTimeout, Dial: to.Dial}
	return &peer{
		one: to.HTTP1,
		h2: http2.NewPool(http2.PoolConfig{
			Dialer: d, Client: http2.ClientSettings{MaxStreams: l.Streams, StreamWindow: streamWindow, PingInterval: l.PingInterval},
			IdleTimeout: l.IdleTimeout, MaxConnections: l.Connections, Choice: true,
		}, p.clock),
		h1: http1.NewPool(http1.PoolConfig{
			Addr: to.Addr, TLS: to.TLS, ConnectTimeout: l.ConnectTimeout, IdleTimeout: l.IdleTimeout, MaxConnections: l.Connections * l.Streams, Dial: to.Dial,
		}, p.clock),
		ctx: ctx, cut: cut, open: make(map[*Conn]struct{}), asked: make(map[*asking]struct{}),
	}
}

// streamWindow is how many bytes of a tunnel a peer may send that nobody has read.
const streamWindow = 64 << 10

func (p *Pool[K]) leave(pe *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pe.asking--
}

// upstream is a stream, or a connection of its own.
type upstream interface {
	conn.Interrupter
	Reused() bool
	Progress() exchange.Progress
	RoundTrip(head, body, method []byte, upgrade bool, f *exchange.Fields, sink exchange.BodySink) (exchange.Head, error)
	CopyBody(sink exchange.BodySink, raw bool, t *exchange.Fields) error
	Takeover() conn.Conn
	Release(reuse bool)
}

// get returns a stream of the peer, or a connection if it does not speak HTTP/2.
func (pe *peer) get(by *asking, fresh bool) (upstream, error) {
	if pe.one {
		return pe.plain(pe.h1.Get(by, true))
	}
	s, other, err := pe.h2.Get(by, fresh)
	switch {
	case s != nil:
		return s, nil
	case errors.Is(err, http2.ErrOther): // somebody else has just found out
		return pe.plain(pe.h1.Get(by, true))
	case err != nil:
		return nil, err
	}
	return pe.plain(pe.h1.Adopt(other))
}

func (pe *peer) plain(c *http1.ClientConn, err error) (upstream, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// asking is one opening under way.
type asking struct {
	ctx    context.Context
	peer   context.Context
	clock  *conn.Clock
	within time.Duration
	up     upstream // that the answer is awaited on
	body   []byte

	alarm conn.Alarm
	slot  conn.ClockSlot
}

// DialContext bounds a dial.
func (a *asking) DialContext() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(a.ctx)
	stop := context.AfterFunc(a.peer, func() { cancel(ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }
}

// LastResort is never: who opens tunnels decides himself how often.
func (a *asking) LastResort() bool { return false }

// Repeatable is true: nothing of a tunnel is lost with its head.
func (a *asking) Repeatable() bool { return true }

// reason is the error to the caller.
func (a *asking) reason(err error) error {
	var r *Refusal
	switch {
	case errors.As(err, &r):
		return r
	case a.ctx.Err() != nil:
		return fmt.Errorf("opening a tunnel: %w: %w", context.Cause(a.ctx), err)
	case a.peer.Err() != nil:
		return ErrClosed
	case errors.Is(err, http1.ErrPoolFull), errors.Is(err, http2.ErrPoolFull):
		return fmt.Errorf("%w: %w", ErrFull, err)
	case errors.Is(err, http1.ErrPoolClosed), errors.Is(err, http2.ErrPoolClosed):
		return ErrClosed
	}
	return fmt.Errorf("opening a tunnel: %w", err)
}

var connectMethod = []byte("CONNECT")

// ErrSlow is a peer that does not answer within the time of a request.
var ErrSlow = errors.New("the peer does not answer")

// roundTrip asks for the tunnel on a stream. It is interrupted when the caller gives up, when the tunnels of the peer are to end, and
// when the time is up.
func (p *Pool[K]) roundTrip(pe *peer, a *asking, up upstream, head []byte) (conn.Conn, error) {
	a.up = up
	if !p.ask(pe, a) {
		return nil, ErrClosed
	}
	callers := context.AfterFunc(a.ctx, up.Interrupt)
	if a.within > 0 {
		a.alarm.Bind(a.clock)
		a.alarm.Arm(up, a.within)
		a.clock.Add(a)
	}
	var f, trailers exchange.Fields
	got, err := up.RoundTrip(head, nil, connectMethod, false, &f, a)
	if err == nil && got.Status/100 != 2 {
		_ = up.CopyBody(a, false, &trailers) // as far as it goes
		err = refusal(got.Status, &f, a.body)
	}
	a.clock.Remove(a)
	slow := a.alarm.Disarm() != conn.CauseNone
	ok, left := p.answered(pe, a), callers()
	switch {
	case slow:
		return nil, ErrSlow
	case !ok, !left: // it has been interrupted, and is of no use
		return nil, cmp.Or(err, context.Canceled)
	case err != nil:
		return nil, err
	}
	return up.Takeover(), nil
}

// ask has the end of the peer's tunnels interrupt an opening; false: they have ended.
func (p *Pool[K]) ask(pe *peer, a *asking) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pe.ctx.Err() != nil {
		return false
	}
	pe.asked[a] = struct{}{}
	return true
}

// answered ends what ask has begun; false: the tunnels have ended meanwhile.
func (p *Pool[K]) answered(pe *peer, a *asking) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(pe.asked, a)
	return pe.ctx.Err() == nil
}

// OnTick is the clock's visit.
func (a *asking) OnTick(c *conn.Clock) int { c.Expire(&a.alarm); return -1 }

// OnDeparted is never called: nothing is probed.
func (a *asking) OnDeparted() {}

// Slot is the clock's.
func (a *asking) Slot() *conn.ClockSlot { return &a.slot }

// Sent has nothing to do.
func (a *asking) Sent() {}

// errEnough ends the reading of a long refusal.
var errEnough = errors.New("enough of the body was read")

// Body takes the body of a refusal.
func (a *asking) Body(b []byte, _ bool) error {
	a.body = append(a.body, b[:min(len(b), maxBody-len(a.body))]...)
	if len(a.body) == maxBody {
		return errEnough
	}
	return nil
}

// Raw is never called: nobody asks for chunks.
func (a *asking) Raw(exchange.RawRun) error { return errEnough }

// Interim passes over 1xx heads.
func (a *asking) Interim(int, *exchange.Fields) error { return nil }
