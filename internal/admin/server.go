// Package admin is the operator's listener: health, readiness, metrics and views of what is running, on a socket of
// its own that never carries traffic. A Server lives as long as the process; what it is configured with changes in
// two steps, so that a bad candidate leaves the running listener alone. It shows what the funcs of Views return and
// must not know where that comes from; it changes nothing.
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"

	"github.com/sluice-proxy/sluice/internal/config"
)

// Names of the two sockets, as Deps.Listen and Server.Sockets know them.
const (
	SocketMain  = "management"
	SocketProbe = "management-probe"
)

// Deps is what a Server takes from the process.
type Deps struct {
	Views   Views
	Metrics http.Handler // nil: there is no metrics route
	Log     *slog.Logger
	// Listen opens a socket: one that was handed over under that name if its address fits, else a new one.
	// nil: always a new one.
	Listen func(name, address string) (net.Listener, error)
	// LookupEnv finds the token. nil: the process's environment.
	LookupEnv func(key string) (value string, ok bool)
}

// Server owns the management sockets. Changes come from one goroutine at a time; the rest is safe for concurrent use.
type Server struct {
	deps Deps

	mu     sync.Mutex // guards what follows
	faces  map[string]*face
	closed bool
	ending sync.WaitGroup // goroutines of sockets and servers
}

// face is one of the two sockets with what answers on it.
type face struct {
	address string // as configured
	socket  *socket
	front   *front
}

// ErrClosed says that the Server was closed.
var ErrClosed = errors.New("management server is closed")

// New returns a server without sockets.
func New(d Deps) *Server {
	if d.Listen == nil {
		d.Listen = func(_, address string) (net.Listener, error) { return net.Listen("tcp", address) }
	}
	if d.LookupEnv == nil {
		d.LookupEnv = os.LookupEnv
	}
	return &Server{deps: d, faces: make(map[string]*face)}
}

// Pending is a prepared change. Exactly one of Commit and Abort must be called.
type Pending struct {
	server *Server
	faces  map[string]*face
	opened []*socket
}

// Prepare checks the block, reads token and certificates, and opens the sockets that are new. What runs is not
// touched. The token's variable must exist and not be empty.
func (s *Server) Prepare(cfg config.Management) (*Pending, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	p := &Pending{server: s, faces: make(map[string]*face)}
	if !cfg.Enabled {
		return p, nil
	}
	set, err := newSettings(cfg, s.deps.LookupEnv)
	if err != nil {
		return nil, fmt.Errorf("management: %w", err)
	}
	if err := p.open(SocketMain, cfg.Address, set); err != nil {
		return nil, err
	}
	if cfg.ProbeAddress != "" {
		if err := p.open(SocketProbe, cfg.ProbeAddress, set.probe()); err != nil {
			p.Abort()
			return nil, err
		}
	}
	return p, nil
}

// open prepares one face: on the socket that has the address already, or on a new one. The server's mu is held.
func (p *Pending) open(name, address string, set *settings) error {
	f := &face{address: address}
	if old := p.server.faces[name]; old != nil && old.address == address {
		f.socket = old.socket
		if old.front.set.same(set) {
			f.front = old.front
		}
	} else {
		l, err := p.server.deps.Listen(name, address)
		if err != nil {
			return fmt.Errorf("management: listening: %w", err)
		}
		f.socket = newSocket(l, p.server.deps.Log)
		p.opened = append(p.opened, f.socket)
	}
	if f.front == nil {
		f.front = newFront(set, f.socket, &p.server.deps)
	}
	p.faces[name] = f
	return nil
}

// Abort closes what Prepare opened.
func (p *Pending) Abort() {
	for _, s := range p.opened {
		s.close()
	}
}

// Commit makes the change. On a socket that stays, requests that come from now on are judged by the new settings.
// Connections from before close: idle ones at once, others after their request. Sockets that are not named any more
// are closed.
func (p *Pending) Commit() {
	s := p.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		p.Abort()
		return
	}
	for name, f := range p.faces {
		old := s.faces[name]
		if old != nil && old.front == f.front {
			continue
		}
		s.start(f, old == nil || old.socket != f.socket)
		if old != nil {
			s.retire(old, f.socket)
		}
		s.deps.Log.Info("management listener", "name", name, "address", f.socket.listener.Addr().String())
	}
	for name, old := range s.faces {
		if p.faces[name] == nil {
			s.retire(old, nil)
		}
	}
	s.faces = p.faces
}

// start puts a front behind its socket. mu is held.
func (s *Server) start(f *face, fresh bool) {
	s.ending.Go(f.front.serve)
	f.socket.front.Store(f.front)
	if fresh {
		s.ending.Go(f.socket.accept)
	}
}

// retire ends a face, and its socket unless that is kept. mu is held.
func (s *Server) retire(old *face, kept *socket) {
	if old.socket != kept {
		old.socket.close()
	}
	old.front.server.SetKeepAlivesEnabled(false)
	s.ending.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), retireTimeout)
		defer cancel()
		if old.socket != kept {
			old.socket.drain(ctx)
		}
		old.front.end(ctx)
	})
}

// Addr returns the address that a socket is bound to; nil when there is no such socket.
func (s *Server) Addr(name string) net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.faces[name]; f != nil {
		return f.socket.listener.Addr()
	}
	return nil
}

// Sockets returns the open sockets by name, to be handed to another process. They stay the Server's.
func (s *Server) Sockets() map[string]net.Listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]net.Listener, len(s.faces))
	for name, f := range s.faces {
		all[name] = f.socket.listener
	}
	return all
}

// Close closes the sockets, lets requests finish until ctx ends, then cuts them off. It waits for the
// goroutines of the Server; a view that was cut off while it was asked may return later.
func (s *Server) Close(ctx context.Context) {
	s.mu.Lock()
	faces := s.faces
	s.faces, s.closed = make(map[string]*face), true
	s.mu.Unlock()
	for _, f := range faces {
		f.socket.close()
	}
	for _, f := range faces {
		f.socket.drain(ctx)
		f.front.end(ctx)
	}
	s.ending.Wait()
}
