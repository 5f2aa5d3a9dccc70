package entrypoint

import (
	"errors"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
)

// Errors of Serve.
var (
	ErrNoEntrypoint = errors.New("no such entrypoint")
	ErrRefused      = errors.New("entrypoint refuses the connection")
)

// tunnelAddr is what an entrypoint is bound to that listens nowhere.
type tunnelAddr struct{}

func (tunnelAddr) Network() string { return "tunnel" }
func (tunnelAddr) String() string  { return config.TunnelAddress }

// Serve has the named entrypoint serve a connection that came out of a tunnel, to its end, and closes it: with its limits,
// its TLS, its protocols and its drain, as if it had been accepted there. c describes itself by the entrypoint's name. An
// error means that nothing was served; c is closed then, too.
func (s *Set) Serve(name string, c conn.Conn) error {
	s.mu.Lock()
	b := s.table[name]
	s.mu.Unlock()
	err := ErrNoEntrypoint
	if b != nil {
		if o := b.admit(c.Info().Remote.Addr()); o != nil {
			b.serve(c, o)
			return nil
		}
		err = ErrRefused
	}
	if a, ok := c.(interface{ Abort() error }); ok {
		_ = a.Abort()
	}
	_ = c.Close()
	return err
}

// Within has serve serve a connection that came out of a tunnel of the named entrypoint, to its end, and closes it: it drains as
// the connections of that entrypoint do, and does not count as one. An error means that nothing was served; c is closed then,
// too.
func (s *Set) Within(name string, c conn.Conn, serve Serve) error {
	s.mu.Lock()
	b := s.table[name]
	if b == nil { // the entrypoint is going: the tunnel drains with what is left of it
		for old := range s.retired {
			if old.name == name {
				b = old
			}
		}
	}
	s.mu.Unlock()
	defer func() { _ = c.Close() }()
	if b == nil {
		return ErrNoEntrypoint
	}
	defer b.recover(c)
	serve(c, &b.live)
	return nil
}
