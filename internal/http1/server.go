// Package http1 is HTTP/1.1 on the wire, both sides (RFC 9112): a strict head parser, framing, the server's connection
// loop, and the upstream connection with its idle pool. A Server lives as long as its entrypoint, a Pool as long as the
// process; connections own themselves. It knows no route, service or configuration block.
package http1

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Settings are what may change while a server runs. They are read anew for each request.
type Settings struct {
	Limits
	Handler          exchange.Handler
	HeaderTimeout    time.Duration // from the first byte of a head to its end
	BodyIdleTimeout  time.Duration // between two reads of a request body
	WriteIdleTimeout time.Duration // a write that makes no progress
	KeepAliveTimeout time.Duration // idle between two requests
	// Connect has CONNECT (RFC 9110 §9.3.6), and nothing else, given to the handler; without it 501 is answered.
	Connect bool
}

// Server serves connections.
type Server struct {
	settings atomic.Pointer[Settings]
	clock    *conn.Clock
	// H2 takes a connection that begins with the HTTP/2 preface, of which prefix has been read; nil refuses it.
	h2 func(c conn.Conn, prefix []byte, live *drain.Tracker)
}

// NewServer makes a server. h2 takes over clear-text connections that turn out to speak HTTP/2; nil refuses them.
func NewServer(s *Settings, clock *conn.Clock, h2 func(c conn.Conn, prefix []byte, live *drain.Tracker)) *Server {
	srv := &Server{clock: clock, h2: h2}
	srv.settings.Store(s)
	return srv
}

// Update replaces the settings: the next request of every connection uses them.
func (s *Server) Update(n *Settings) { s.settings.Store(n) }

// Buffers. An idle connection holds none.
const (
	smallBuffer = 4 << 10   // a request head, and a small body behind it
	bigBuffer   = 128 << 10 // bodies, and what a backend answers
	plainBuffer = 32 << 10  // what a backend answers, when it is waited for with the buffer in hand: more than a TLS record
	minBodyRead = 16 << 10  // a body is not read in smaller pieces, if there is more
	maxOwn      = 16 << 10  // a connection to a backend keeps a head's buffer of up to this size
	// maxInline is the largest request body that is read whole before its request runs, if it is there already.
	maxInline = 32 << 10
)

var (
	smallPool = sync.Pool{New: func() any { b := make([]byte, smallBuffer); return &b }}
	bigPool   = sync.Pool{New: func() any { b := make([]byte, bigBuffer); return &b }}
	plainPool = sync.Pool{New: func() any { b := make([]byte, plainBuffer); return &b }}
	outPool   = sync.Pool{New: func() any { b := make([]byte, 0, 2<<10); return &b }}
	xPool     = sync.Pool{New: func() any { return new(exchange.Exchange) }}
)

// maxPooledOut keeps an unusually large head from staying in the pool.
const maxPooledOut = 64 << 10
