package middleware

import (
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// TCPFilter lets a connection pass whose client is on a list, while the connections of its router are not too many.
type TCPFilter struct {
	name    string
	allowed []netip.Prefix // empty: everybody
	most    int64          // 0: no bound
	open    *count
	next    exchange.ConnHandler
}

func newTCPFilter(cfg *config.Middleware, d Deps, next exchange.ConnHandler) (exchange.ConnHandler, error) {
	if cfg.TCPFilter == nil {
		return nil, errNoBlock(cfg.Type)
	}
	return &TCPFilter{
		name: cfg.Name, allowed: cfg.TCPFilter.Allowed, most: int64(cfg.TCPFilter.MaxConnections),
		open: d.Limits.count(d.Router, cfg.Name), next: next,
	}, nil
}

var (
	notAllowed  = exchange.Reject(403, exchange.CodeIPNotAllowed, "Client address not allowed")
	tooManyOpen = &exchange.Error{
		Status: 503, Code: exchange.CodeTooManyConnections, Public: "Too many connections", Outcome: exchange.OutcomeRejected,
		Limit: "max_connections",
	}
)

// ServeConn goes on, or refuses.
func (f *TCPFilter) ServeConn(c conn.Conn, x *exchange.Exchange) error {
	if len(f.allowed) > 0 && !config.Among(f.allowed, x.Record.ClientIP) {
		x.Record.Middleware = f.name
		return notAllowed
	}
	defer f.open.Add(-1)
	if f.open.Add(1) > f.most && f.most > 0 {
		x.Record.Middleware = f.name
		return tooManyOpen
	}
	return f.next.ServeConn(c, x)
}
