package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// Upstream is one dispatch to a backend, over HTTP/1.1 on a connection of its own or over HTTP/2 on a stream. The
// exchange's goroutine owns it until Release, except that one other may send the body meanwhile, and any may interrupt.
type Upstream interface {
	conn.Interrupter
	// Reused reports whether the connection has served a request before.
	Reused() bool
	// HTTP2 reports whether the backend is spoken HTTP/2 with.
	HTTP2() bool
	// Progress of the dispatch.
	Progress() exchange.Progress
	// RoundTrip sends a request head, spelled as HTTP/1.1 does, with the body if that is at hand, and reads the final
	// response head; its fields go to f, whose views stay valid until Release.
	RoundTrip(head, body, method []byte, upgrade bool, f *exchange.Fields, sink exchange.BodySink) (exchange.Head, error)
	// BeginBody is called once before a body is sent that was not at hand; its length is -1 if it is not known.
	BeginBody(length int64)
	// Write sends body bytes, waiting while the backend has no room for them.
	Write(p []byte) error
	// EndBody ends the body, with trailers if it has no known length.
	EndBody(trailers *exchange.Fields) error
	// Done reports whether the response is complete without a body, Buffered whether body bytes are here, and Chunked
	// whether they may be passed on raw.
	Done() bool
	Buffered() bool
	Chunked() bool
	// CopyBody gives the response body to sink until its end. Trailers go to t before the last call.
	CopyBody(sink exchange.BodySink, raw bool, t *exchange.Fields) error
	// Takeover gives the connection or stream up as a conn, after a 101 or a 2xx to CONNECT. Release closes it.
	Takeover() conn.Conn
	// Release gives everything back. reuse is false when the request was not sent whole, or the response not read.
	Release(reuse bool)
}

var (
	_ Upstream = (*http1.ClientConn)(nil)
	_ Upstream = (*http2.ClientStream)(nil)
)

// ErrPoolFull is a backend to which no further connection or stream may be opened.
var ErrPoolFull = errors.New("connections to the backend are exhausted")

// ErrNotSpoken is a backend that does not speak HTTP/2 where nothing but a gRPC call asks for that. Whatever else is sent to
// it may go well.
var ErrNotSpoken = errors.New("backend did not begin with HTTP/2")

// Pool is the connections to one backend, of the protocols that are spoken with it. It lives as long as the process knows
// the backend.
type Pool struct {
	http1 *http1.Pool
	http2 *http2.Pool        // nil: it is not spoken
	alone bool               // HTTP/1.1 is not spoken
	tls   func() *tls.Config // of a tls backend, for each connection; nil: Secure does nothing
	// chosen is when the backend last chose HTTP/1.1 although HTTP/2 was offered, on the monotonic clock from start; 0 never.
	chosen atomic.Int64
	start  time.Time

	newCalls func() *http2.Pool // makes calls

	mu     sync.Mutex  // guards the fields below
	calls  *http2.Pool // for gRPC, where nothing else speaks HTTP/2; nil: there was none
	closed bool
}

// remembered is for how long it is taken for granted that a backend chooses HTTP/1.1.
const remembered = 30 * time.Second

// Get returns a connection or stream for a request. fresh insists on a new connection.
func (p *Pool) Get(by http1.Dialing, fresh bool) (Upstream, error) {
	switch {
	case p.http2 == nil:
		return p.plain(by, fresh)
	case p.alone:
		return p.multiplexed(by, fresh)
	case p.choosesHTTP1():
		return p.plain(by, fresh)
	}
	if !fresh {
		if c := p.http1.Idle(by); c != nil {
			return c, nil
		}
	}
	return p.multiplexed(by, fresh)
}

// GetUpgradable is Get for a request that asks for another protocol, which HTTP/2 cannot change to.
func (p *Pool) GetUpgradable(by http1.Dialing, fresh bool) (Upstream, error) {
	if p.alone {
		return p.multiplexed(by, fresh)
	}
	return p.plain(by, fresh)
}

// GetCall is Get for a gRPC call, which goes over HTTP/2 whatever is spoken otherwise: in clear text by prior knowledge, and
// over TLS by ALPN.
func (p *Pool) GetCall(by http1.Dialing, fresh bool) (Upstream, error) {
	two, err := p.forCalls()
	if err != nil {
		return nil, err
	}
	s, other, err := two.Get(by, fresh)
	switch {
	case s != nil:
		return s, nil
	case err == nil:
		p.chosen.Store(int64(time.Since(p.start)) + 1)
		if c, err := p.http1.Adopt(other); err == nil {
			c.Release(true)
		}
		err = http2.ErrOther
	}
	if errors.Is(err, http2.ErrOther) && !errors.Is(err, conn.ErrTLS) {
		err = fmt.Errorf("%w: %w", conn.ErrTLS, err)
	}
	if !p.alone && (errors.Is(err, conn.ErrTLS) || errors.Is(err, http2.ErrNoSettings)) {
		err = fmt.Errorf("%w: %w", ErrNotSpoken, err)
	}
	return nil, poolError(err)
}

// forCalls is the pool that gRPC calls use.
func (p *Pool) forCalls() (*http2.Pool, error) {
	if p.http2 != nil {
		return p.http2, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.closed:
		return nil, http2.ErrPoolClosed
	case p.calls == nil:
		p.calls = p.newCalls()
	}
	return p.calls, nil
}

func (p *Pool) plain(by http1.Dialing, fresh bool) (Upstream, error) {
	c, err := p.http1.Get(by, fresh)
	if err != nil {
		return nil, poolError(err)
	}
	return c, nil
}

func (p *Pool) multiplexed(by http1.Dialing, fresh bool) (Upstream, error) {
	s, other, err := p.http2.Get(by, fresh)
	switch {
	case s != nil:
		return s, nil
	case !p.alone && errors.Is(err, http2.ErrOther): // somebody else has just found out
		return p.plain(by, fresh)
	case err != nil:
		return nil, poolError(err)
	}
	p.chosen.Store(int64(time.Since(p.start)) + 1)
	c, err := p.http1.Adopt(other)
	if err != nil {
		return nil, poolError(err)
	}
	return c, nil
}

func (p *Pool) choosesHTTP1() bool {
	t := p.chosen.Load()
	return t != 0 && time.Since(p.start)-time.Duration(t) < remembered
}

// poolError names what both protocols call full by one name.
func poolError(err error) error {
	if errors.Is(err, http1.ErrPoolFull) || errors.Is(err, http2.ErrPoolFull) {
		return ErrPoolFull
	}
	return err
}

// Connect returns a new connection whose bytes are the caller's; see http1.Pool.Connect.
func (p *Pool) Connect(by http1.Dialing) (*http1.ClientConn, error) {
	c, err := p.http1.Connect(by)
	return c, poolError(err)
}

// Secures reports whether the bytes of a connection travel inside TLS.
func (p *Pool) Secures() bool { return p.tls != nil }

// Secure begins TLS on a connection of Connect, if the backend is a tls one. Closing the connection below is the caller's.
func (p *Pool) Secure(ctx context.Context, c conn.Conn) (conn.Conn, error) {
	if p.tls == nil {
		return c, nil
	}
	t := tls.Client(c, p.tls())
	if err := t.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("%w: %w", conn.ErrTLS, err)
	}
	return conn.NewPlain(t, conn.Info{}), nil
}

// PoolStats are the pool's gauges: connections, those among them that wait for a request, and streams of HTTP/2.
type PoolStats struct{ Open, Idle, Streams int }

// Stats returns the gauges.
func (p *Pool) Stats() (s PoolStats) {
	one := p.http1.Stats()
	s.Open, s.Idle = one.Open, one.Idle
	for _, pool := range p.multiplexing() {
		two := pool.Stats()
		s.Open, s.Idle, s.Streams = s.Open+two.Open, s.Idle+two.Idle, s.Streams+two.Streams
	}
	return s
}

// multiplexing are the pools of HTTP/2 that there are.
func (p *Pool) multiplexing() (all []*http2.Pool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pool := range [...]*http2.Pool{p.http2, p.calls} {
		if pool != nil {
			all = append(all, pool)
		}
	}
	return all
}

// close closes the idle connections; those in use close when they are released.
func (p *Pool) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.http1.Close()
	for _, pool := range p.multiplexing() {
		pool.Close()
	}
}
