package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxConnections  = 256
	headerTimeout   = 10 * time.Second // TLS handshake, request head
	requestTimeout  = 30 * time.Second // head and body
	responseTimeout = 60 * time.Second
	idleTimeout     = 60 * time.Second
	retireTimeout   = 5 * time.Second
	// lastRequestTimeout is how long a connection may take to bring its request when its socket closes.
	lastRequestTimeout = time.Second
	maxHeaderBytes     = 16 << 10
	minAcceptBackoff   = 5 * time.Millisecond
	maxAcceptBackoff   = time.Second
)

// socket is a listening socket. It outlives the front behind it: a change of settings loses no connection attempt.
type socket struct {
	listener net.Listener
	log      *slog.Logger
	front    atomic.Pointer[front]
	open     atomic.Int64
	once     sync.Once
	closed   chan struct{}
	quiet    chan struct{} // closed when accept has returned: every connection has been handed on
}

func newSocket(l net.Listener, log *slog.Logger) *socket {
	return &socket{listener: l, log: log, closed: make(chan struct{}), quiet: make(chan struct{})}
}

func (s *socket) close() {
	s.once.Do(func() {
		close(s.closed)
		if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			s.log.Warn("closing the management socket", "error", err)
		}
	})
}

// drain closes the socket and waits until the front has got what had been accepted: the front may end only then, or
// it would turn those away who came last. Of a socket that accepts.
func (s *socket) drain(ctx context.Context) {
	s.close()
	select {
	case <-s.quiet:
	case <-ctx.Done():
	}
}

// accept hands connections to the front until the socket is closed. One too many is closed at once.
func (s *socket) accept() {
	defer close(s.quiet)
	backoff := minAcceptBackoff
	for {
		c, err := s.listener.Accept()
		if err != nil {
			select {
			case <-s.closed:
				return
			case <-time.After(backoff):
				s.log.Warn("accepting a management connection", "error", err)
				backoff = min(2*backoff, maxAcceptBackoff)
			}
			continue
		}
		backoff = minAcceptBackoff
		if s.open.Add(1) > maxConnections {
			s.open.Add(-1)
			c.Close()
			continue
		}
		s.hand(&counted{Conn: c, open: &s.open})
	}
}

// hand gives a connection to the front; when that is just being replaced, to the next one.
func (s *socket) hand(c *counted) {
	for {
		f := s.front.Load()
		f.open.Add(1)
		c.front = f
		select {
		case f.handoff <- c:
			return
		case <-f.ended:
			f.open.Add(-1)
			c.front = nil
			if s.front.Load() == f {
				c.Close()
				return
			}
		}
	}
}

// counted is a connection that gives its place back when it closes.
type counted struct {
	net.Conn
	open  *atomic.Int64
	front *front // has it; nil while nobody does
	once  sync.Once
}

// Close closes the connection.
func (c *counted) Close() error {
	c.once.Do(func() {
		c.open.Add(-1)
		if c.front != nil {
			c.front.open.Add(-1)
		}
	})
	return c.Conn.Close()
}

// front is what answers on a socket: one set of settings, with an HTTP server that reads connections from a channel.
type front struct {
	set     *settings
	socket  *socket
	handler *handler
	server  *http.Server
	handoff chan net.Conn
	open    atomic.Int64 // connections
	ended   chan struct{}
	once    sync.Once
}

func newFront(set *settings, s *socket, d *Deps) *front {
	f := &front{set: set, socket: s, handler: newHandler(set, d), handoff: make(chan net.Conn), ended: make(chan struct{})}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(set.tls != nil)
	protocols.SetUnencryptedHTTP2(set.tls == nil)
	f.server = &http.Server{
		Handler:           f,
		TLSConfig:         set.tls,
		Protocols:         protocols,
		ReadHeaderTimeout: headerTimeout, // also bounds the handshake
		ReadTimeout:       requestTimeout,
		WriteTimeout:      responseTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(d.Log.Handler(), slog.LevelDebug),
	}
	return f
}

// ServeHTTP answers by the settings that are the socket's now, which is not this front's when another has taken its
// place: a token that was changed, say, opens nothing any more, on whatever connection it comes.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := f.socket.front.Load()
	if now != f && !f.set.suffice(now.set) {
		w.Header().Set("Connection", "close")
		refuse(w, http.StatusServiceUnavailable, "Connection is from before a change of settings")
		return
	}
	now.handler.ServeHTTP(w, r)
}

// serve answers until end.
func (f *front) serve() { _ = f.server.Serve(f) }

// Accept returns the next connection, as the HTTP server wants it.
func (f *front) Accept() (net.Conn, error) {
	select {
	case c := <-f.handoff:
		if f.set.tls != nil {
			return tls.Server(c, f.set.tls), nil
		}
		return c, nil
	case <-f.ended:
		return nil, net.ErrClosed
	}
}

// Close ends Accept.
func (f *front) Close() error {
	f.once.Do(func() { close(f.ended) })
	return nil
}

// Addr is required of a listener; the socket knows the address.
func (f *front) Addr() net.Addr { return (*net.TCPAddr)(nil) }

// end lets requests finish until ctx ends, and closes every connection then.
func (f *front) end(ctx context.Context) {
	f.Close()
	f.answerLast(ctx)
	if f.server.Shutdown(ctx) != nil {
		f.server.Close()
	}
}

// answerLast ends idle connections and waits for the others to get their answer. The HTTP server's own shutdown would
// drop a request that arrives during it, without a word. Connections that bring none are not waited for long.
func (f *front) answerLast(ctx context.Context) {
	f.server.SetKeepAlivesEnabled(false)
	ctx, cancel := context.WithTimeout(ctx, lastRequestTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for f.open.Load() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
