package entrypoint

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// plainAcceptor takes connections from an ordinary listener: on other systems, and from in-memory networks.
type plainAcceptor struct {
	ln    net.Listener
	pause backoff
}

// bindPlain gives s one acceptor that listen makes.
func (s *socket) bindPlain(ctx context.Context, listen func(ctx context.Context, network, address string) (net.Listener, error)) error {
	ln, err := listen(ctx, s.addr.network(), s.addr.literal())
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) { // its text repeats the address
			err = op.Err
		}
		return err
	}
	s.bound = ln.Addr()
	s.acceptors = []acceptor{&plainAcceptor{ln: ln}}
	return nil
}

func (a *plainAcceptor) run(s *socket) {
	var last *binding // gets a connection that comes while the socket is being closed
	for {
		b := s.await()
		if b == nil {
			return
		}
		last = b
		c, err := a.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			a.pause.wait(s, b, err)
			continue
		}
		a.pause.ok(s, b)
		if b = s.owner.Load(); b == nil { // accepted while paused
			b = s.await()
		}
		if b == nil {
			b = last
		}
		b.start(c)
	}
}

// start serves a connection of the net package.
func (b *binding) start(c net.Conn) {
	p := conn.NewPlain(c, conn.Info{Entrypoint: b.name})
	o := b.admit(p.Info().Remote.Addr())
	if o == nil {
		_ = c.Close()
		return
	}
	go b.serve(p, o)
}

// sweepTime is how long a listener of the net package is given to hand out each connection that waits in its queue: it
// cannot be asked without waiting. Most of it is for the last packet of a handshake, which may be late on a busy machine.
const sweepTime = 20 * time.Millisecond

func (a *plainAcceptor) refuse(*socket) bool { return false }

func (a *plainAcceptor) sweep(_ *socket, b *binding) {
	d, ok := a.ln.(interface{ SetDeadline(t time.Time) error })
	if !ok {
		return
	}
	for range DefaultMaxConnections {
		if d.SetDeadline(time.Now().Add(sweepTime)) != nil {
			return
		}
		asked := time.Now()
		c, err := a.ln.Accept()
		if err == nil {
			b.start(c)
			continue
		}
		// After a deadline that has passed before it was asked, a listener says nothing about its queue.
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(asked) >= sweepTime/2 {
			return
		}
	}
}

func (a *plainAcceptor) file() (*os.File, error) {
	f, ok := a.ln.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, errors.New("the listener has no descriptor")
	}
	return f.File()
}

func (a *plainAcceptor) Close() error { return a.ln.Close() }
