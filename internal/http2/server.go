// Package http2 is HTTP/2 towards clients (RFC 9113), over TLS by ALPN and in clear text by prior knowledge. A Server
// lives as long as its entrypoint, a connection as long as its socket, a stream as long as its exchange. The package owns
// the connection loop (frames, flow control, budgets against floods), the strict reading of a request head, the exchange's
// client end, time limits and the drain; HPACK is decoded by golang.org/x/net. It knows no route, service or configuration
// block.
package http2

import (
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Settings are what may change while a server runs. Handler, the timeouts of bodies and the limits of heads are read
// anew for each stream; HeaderTimeout, KeepAliveTimeout and MaxStreams when a connection begins. A duration of 0 is no
// limit.
type Settings struct {
	Handler          exchange.Handler
	HeaderTimeout    time.Duration // from the connection's begin to the end of its preface; a field block in several frames
	BodyIdleTimeout  time.Duration // between two reads of a request body
	WriteIdleTimeout time.Duration // a write that makes no progress: ends its stream, or the connection if that is full
	KeepAliveTimeout time.Duration // a connection without a stream
	MaxHeaderBytes   int           // a request head as HTTP/1.1 would spell it; 0 is 65536
	MaxHeaders       int           // number of its fields; 0 is 256
	MaxStreams       int           // streams at once on a connection; 0 is 250
	// Connect has CONNECT (RFC 9113 §8.5), and nothing else, given to the handler; without it 501 is answered. Streams then
	// have the window of a tunnel. When a connection begins.
	Connect bool
}

// Defaults of Settings.
const (
	defaultMaxHeaderBytes = 64 << 10
	defaultMaxHeaders     = 256
	defaultMaxStreams     = 250
)

// withDefaults returns a copy with the zero limits filled in.
func (s *Settings) withDefaults() *Settings {
	n := *s
	n.MaxHeaderBytes = orDefault(n.MaxHeaderBytes, defaultMaxHeaderBytes)
	n.MaxHeaders = orDefault(n.MaxHeaders, defaultMaxHeaders)
	n.MaxStreams = orDefault(n.MaxStreams, defaultMaxStreams)
	return &n
}

func orDefault(n, d int) int {
	if n <= 0 {
		return d
	}
	return n
}

// Server serves connections.
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

func (s *Server) writeLimit() time.Duration { return s.settings.Load().WriteIdleTimeout }
