package conn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Dialer opens connections to one place. It lives as long as the pools that use it, and is safe for concurrent use.
type Dialer struct {
	Addr    string             // host:port, or unix:/path
	TLS     func() *tls.Config // for each connection; nil: clear text
	Timeout time.Duration      // for name, connection and handshake together
	// Dial replaces the kernel's network; nil dials Addr.
	Dial func(ctx context.Context) (net.Conn, error)

	names resolver

	mu      sync.Mutex // guards refused
	refused time.Time  // since when every dial was refused; zero when the last one was not
}

// Dial stages, for telling failures apart.
var (
	ErrResolve = errors.New("name resolution failed")
	ErrConnect = errors.New("connect failed")
	ErrTLS     = errors.New("TLS handshake failed")
)

// Dialing bounds a dial; it is asked only if one is needed.
type Dialing interface {
	DialContext() (context.Context, context.CancelFunc)
	// LastResort reports whether the caller has nowhere else to go: a place that refuses, as one that is just starting
	// does, is then asked again for a moment.
	LastResort() bool
}

// Dialed is a new connection.
type Dialed struct {
	Conn       // with TLS, if there is any
	Under Conn // what TLS stands on; nil without
}

// Open opens a connection. ctx is that of by.
func (d *Dialer) Open(ctx context.Context, by Dialing) (Dialed, error) {
	c, err := d.once(ctx)
	for err != nil && d.outage(err) < startGrace && by.LastResort() && pause(ctx, startPause) {
		c, err = d.once(ctx)
	}
	if err == nil {
		d.mu.Lock()
		d.refused = time.Time{}
		d.mu.Unlock()
	}
	return c, err
}

// A place that refuses is asked again every startPause, until it has refused for startGrace: a restart shows as a delay,
// an outage is told at once.
const (
	startGrace = time.Second
	startPause = 25 * time.Millisecond
)

// outage is for how long connections have been refused, given the latest failure.
func (d *Dialer) outage(err error) time.Duration {
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return startGrace
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refused.IsZero() {
		d.refused = time.Now()
	}
	return time.Since(d.refused)
}

// pause waits; false when ctx has ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// once opens a connection to one of the addresses.
func (d *Dialer) once(ctx context.Context) (Dialed, error) {
	ctx, cancel := context.WithTimeout(ctx, d.Timeout)
	defer cancel()
	nc, err := d.connect(ctx)
	if err != nil {
		return Dialed{}, err
	}
	c := fastest(nc)
	if d.TLS == nil {
		return Dialed{Conn: c}, nil
	}
	t := tls.Client(c, d.TLS())
	if err := t.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return Dialed{}, fmt.Errorf("%w: %w", ErrTLS, err)
	}
	state := t.ConnectionState()
	return Dialed{Conn: NewPlain(t, Info{TLS: &state}), Under: c}, nil
}

func (d *Dialer) connect(ctx context.Context) (net.Conn, error) {
	if d.Dial != nil {
		return d.Dial(ctx)
	}
	kernel := net.Dialer{KeepAlive: 15 * time.Second}
	if path, ok := strings.CutPrefix(d.Addr, "unix:"); ok {
		nc, err := kernel.DialContext(ctx, "unix", path)
		return nc, stage(ErrConnect, err)
	}
	addrs, err := d.names.lookup(ctx, d.Addr)
	if err != nil {
		return nil, stage(ErrResolve, err)
	}
	err = errors.New("name has no address")
	for i, a := range addrs {
		var nc net.Conn
		if nc, err = dialShare(ctx, &kernel, a, len(addrs)-i); err == nil {
			return nc, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, stage(ErrConnect, err)
}

// dialShare dials one of left addresses with its share of the time, so that one that does not answer leaves some to the
// others.
func dialShare(ctx context.Context, d *net.Dialer, addr string, left int) (net.Conn, error) {
	if end, ok := ctx.Deadline(); ok && left > 1 {
		short, cancel := context.WithTimeout(ctx, time.Until(end)/time.Duration(left))
		defer cancel()
		ctx = short
	}
	return d.DialContext(ctx, "tcp", addr)
}

func stage(s, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", s, err)
}

// ordinary gives a dialed connection an Info, if it has none.
func ordinary(nc net.Conn) Conn {
	if c, ok := nc.(Conn); ok {
		return c
	}
	return NewPlain(nc, Info{})
}
