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
	maxConnections   = 256
	headerTimeout    = 10 * time.Second // TLS handshake, request head
	requestTimeout   = 30 * time.Second // head and body
	responseTimeout  = 60 * time.Second
	idleTimeout      = 60 * time.Second
	retireTimeout    = 5 * time.Second
	maxHeaderBytes   = 16 << 10
	minAcceptBackoff = 5 * time.Millisecond
	maxAcceptBackoff = time.Second
)

// socket is a listening socket. It outlives the front behind it: a change of settings loses no connection attempt.
type socket struct {
	listener net.Listener
	log      *slog.Logger
	front    atomic.Pointer[front]
	open     atomic.Int64
	once     sync.Once
	closed   chan struct{}
}

func newSocket(l net.Listener, log *slog.Logger) *socket {
	return &socket{listener: l, log: log, closed: make(chan struct{})}
}

func (s *socket) close() {
	s.once.Do(func() {
		close(s.closed)
		if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			s.log.Warn("closing the management socket", "error", err)
		}
	})
}

// accept hands connections to the front until the socket is closed. One too many is closed at once.
func (s *socket) accept() {
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
func (s *socket) hand(c net.Conn) {
	for {
		f := s.front.Load()
		select {
		case f.handoff <- c:
			return
		case <-f.ended:
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
	open *atomic.Int64
	once sync.Once
}

// Close closes the connection.
func (c *counted) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Conn.Close()
}

// front is what answers on a socket: one set of settings, with an HTTP server that reads connections from a channel.
type front struct {
	set     *settings
	server  *http.Server
	handoff chan net.Conn
	ended   chan struct{}
	once    sync.Once
}

func newFront(set *settings, d *Deps) *front {
	f := &front{set: set, handoff: make(chan net.Conn), ended: make(chan struct{})}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(set.tls != nil)
	protocols.SetUnencryptedHTTP2(set.tls == nil)
	f.server = &http.Server{
		Handler:           newHandler(set, d),
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
	if f.server.Shutdown(ctx) != nil {
		f.server.Close()
	}
}
