package fabric

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// Listen binds a TCP address inside the namespace. The listener may be used by any goroutine. It speaks plain TCP: the
// kernel does not tell where a connection over several paths (RFC 8684) was meant to go, and who asks for one falls back.
func (n *Namespace) Listen(addr netip.AddrPort) (*net.TCPListener, error) {
	var l net.Listener
	err := n.Do(func() (err error) {
		lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error { return n.CheckConn(c) }}
		lc.SetMultipathTCP(false) // true is what Go does otherwise
		l, err = lc.Listen(context.Background(), "tcp", addr.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listening in %s: %w", n.name, err)
	}
	return l.(*net.TCPListener), nil
}

// Dial connects from inside the namespace. Only making sockets happens there, some at a time, so that slow peers hold up nobody.
func (n *Namespace) Dial(ctx context.Context, to netip.AddrPort) (*conn.Raw, error) {
	return n.DialWithin(ctx, to, 0)
}

// DialWithin is Dial that takes a time at most, if that is not 0. A deadline of the context costs more.
func (n *Namespace) DialWithin(ctx context.Context, to netip.AddrPort, within time.Duration) (*conn.Raw, error) {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := n.socket(family)
	if err != nil {
		return nil, fmt.Errorf("dialing in %s: %w", n.name, err)
	}
	if err := n.Check(fd); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	c, err := conn.Connect(ctx, fd, to, within)
	if err != nil {
		return nil, fmt.Errorf("dialing %s in %s: %w", to, n.name, err)
	}
	return c, nil
}

// Start starts a command whose process begins inside the namespace.
func (n *Namespace) Start(cmd *exec.Cmd) error { return n.Do(cmd.Start) }

// Check returns nil if a socket belongs to the namespace, otherwise ErrForeign.
func (n *Namespace) Check(fd int) error {
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return fmt.Errorf("asking a socket for its network namespace: %w", err)
	}
	if cookie != n.cookie {
		return fmt.Errorf("%s: %w: cookie %d instead of %d", n.name, ErrForeign, cookie, n.cookie)
	}
	return nil
}

// CheckConn is Check for a connection or listener of the standard library.
func (n *Namespace) CheckConn(c syscall.RawConn) error {
	var err error
	if cerr := c.Control(func(fd uintptr) { err = n.Check(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}
