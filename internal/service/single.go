package service

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/http1"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// Dialing bounds a dial of an attempt, and says what of it may be repeated.
type Dialing = http1.Dialing

// Reach is how attempts get at a backend; the methods are those of Pool, which is one.
type Reach interface {
	Get(by Dialing, fresh bool) (Upstream, error)
	GetUpgradable(by Dialing, fresh bool) (Upstream, error)
	GetCall(by Dialing, fresh bool) (Upstream, error)
}

var _ Reach = (*Pool)(nil)

// Singles speaks HTTP over connections that somebody else opens, each for one exchange: it keeps none, so that nothing can
// be left on one for whoever comes next. It lives as long as the process. Safe for concurrent use.
type Singles struct {
	requests *http1.Pool
	calls    http2.ClientSettings
	clock    *conn.Clock
}

// NewSingles returns one, which the clock visits until Close.
func NewSingles(clock *conn.Clock) *Singles {
	return &Singles{
		requests: http1.NewPool(http1.PoolConfig{MaxRequests: 1}, clock),
		calls:    http2.ClientSettings{MaxRequests: 1, PingInterval: 15 * time.Second}, clock: clock,
	}
}

// Request has one request sent over a connection, in HTTP/1.1. The connection is closed with it, also on an error.
func (s *Singles) Request(c conn.Conn) (Upstream, error) {
	u, err := s.requests.Adopt(conn.Dialed{Conn: c})
	if err != nil {
		return nil, err
	}
	return u, nil
}

// Call has one gRPC call made over a connection, in HTTP/2 by prior knowledge, once the other end has shown that it speaks
// that; ctx bounds the wait. The connection is closed with the call, also on an error.
func (s *Singles) Call(ctx context.Context, c conn.Conn) (Upstream, error) {
	cc := http2.NewClientConn(c, &s.calls, s.clock)
	select {
	case <-cc.Ready():
	case <-ctx.Done():
		cc.Close()
		return nil, fmt.Errorf("%w: waiting for SETTINGS: %w", conn.ErrConnect, context.Cause(ctx))
	}
	if u, ok := cc.Open(); ok {
		return u, nil
	}
	cc.Close()
	return nil, fmt.Errorf("%w: waiting for SETTINGS: %w", conn.ErrConnect, cc.Err())
}

// Open is the number of connections that carry a request of HTTP/1.1 now.
func (s *Singles) Open() int { return s.requests.Stats().Open }

// Close takes no further connection. Those that are there end with their exchange.
func (s *Singles) Close() { s.requests.Close() }
