// Package http3 is HTTP/3 towards clients (RFC 9114) over the QUIC of quic-go. A Listener lives as long as its UDP socket, a
// Server as long as its entrypoint, a connection as long as QUIC holds it, a stream as long as its exchange. The package
// owns HTTP's frames and streams, the exchange's client end, time limits and the drain; heads are read by the rules of
// http2, and QPACK is decoded by quic-go's. It knows no route, service or configuration block.
package http3

import (
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Settings are what may change while a server runs. Handler, the timeouts of heads and bodies and the limits of heads are
// read anew for each stream; KeepAliveTimeout when a connection begins. A duration of 0 is no limit.
type Settings struct {
	Handler          exchange.Handler
	HeaderTimeout    time.Duration // from the stream's begin to the end of its head
	BodyIdleTimeout  time.Duration // between two reads of a request body
	WriteIdleTimeout time.Duration // a write that makes no progress ends its stream
	KeepAliveTimeout time.Duration // a connection without a stream
	MaxHeaderBytes   int           // a request head as HTTP/1.1 would spell it; 0 is 65536
	MaxHeaders       int           // number of its fields; 0 is 256
}

// Defaults of Settings.
const (
	defaultMaxHeaderBytes = 64 << 10
	defaultMaxHeaders     = 256
)

// withDefaults returns a copy with the zero limits filled in.
func (s *Settings) withDefaults() *Settings {
	n := *s
	if n.MaxHeaderBytes <= 0 {
		n.MaxHeaderBytes = defaultMaxHeaderBytes
	}
	if n.MaxHeaders <= 0 {
		n.MaxHeaders = defaultMaxHeaders
	}
	return &n
}

// listLimit is how large an encoded field section is read: twice the limit and the 32 bytes a field that the protocol
// counts, so that what is not far too large is held against the limit itself.
func (s *Settings) listLimit() int { return 2*s.MaxHeaderBytes + 32*s.MaxHeaders }

// Server serves the connections of one entrypoint.
type Server struct {
	settings atomic.Pointer[Settings]
	clock    *conn.Clock
}

// NewServer makes a server.
func NewServer(s *Settings, clock *conn.Clock) *Server {
	srv := &Server{clock: clock}
	srv.settings.Store(s.withDefaults())
	return srv
}

// Update replaces the settings: the next stream of every connection uses them.
func (s *Server) Update(n *Settings) { s.settings.Store(n.withDefaults()) }
