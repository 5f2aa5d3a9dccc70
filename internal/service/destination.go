package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// ErrDenied is a destination that may not be connected to: its port, or every address of its host.
var ErrDenied = errors.New("destination not allowed")

// Destinations connects to what clients ask for, as far as a service allows it. It belongs to a generation and holds
// nothing. Safe for concurrent use.
type Destinations struct {
	name        string
	ports       []int
	allow, deny []netip.Prefix
	timeout     time.Duration
	resolve     Resolver
	dial        Dialer
}

// Resolver finds the addresses of a name.
type Resolver func(ctx context.Context, host string) ([]netip.Addr, error)

// NewDestinations reads a connect block. resolve and dial may be nil for the system's.
func NewDestinations(name string, cfg *config.Connect, resolve Resolver, dial Dialer) *Destinations {
	if resolve == nil {
		resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	return &Destinations{
		name: name, ports: cfg.Ports, allow: cfg.Allow, deny: cfg.Deny, timeout: cfg.ConnectTimeout, resolve: resolve, dial: dial,
	}
}

// Name is the service's.
func (d *Destinations) Name() string { return d.name }

// Dial connects to a destination: its host is resolved once, and only addresses that were judged are dialed, one after the
// other, each with its share of the time. Errors are ErrDenied, or conn's ErrResolve and ErrConnect.
func (d *Destinations) Dial(ctx context.Context, to exchange.Authority) (conn.Conn, error) {
	if err := d.Judge(to); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	addrs := []netip.Addr{to.Addr}
	if !to.Addr.IsValid() {
		var err error
		// The dot at the end keeps the system's search list from making another name of it.
		if addrs, err = d.resolve(ctx, absolute(to.Host)); err != nil {
			return nil, fmt.Errorf("%w: %w", conn.ErrResolve, err)
		}
	}
	addrs = d.allowed(addrs)
	err := fmt.Errorf("%s: %w", to, ErrDenied)
	for i, a := range addrs {
		var c conn.Conn
		if c, err = d.dialOne(ctx, netip.AddrPortFrom(a, to.Port), len(addrs)-i); err == nil {
			return c, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// Judge tells what can be told of a destination without resolving its name: ErrDenied for another port, and for an address that
// is refused.
func (d *Destinations) Judge(to exchange.Authority) error {
	switch {
	case !slices.Contains(d.ports, int(to.Port)):
		return fmt.Errorf("port %d: %w", to.Port, ErrDenied)
	case to.Addr.IsValid() && !d.permits(to.Addr):
		return fmt.Errorf("%s: %w", to, ErrDenied)
	}
	return nil
}

// absolute is a name with a dot at its end, but for those without a dot inside, which files and search lists answer for.
func absolute(host string) string {
	if strings.Contains(host, ".") {
		return host + "."
	}
	return host
}

// dialOne dials one of left addresses.
func (d *Destinations) dialOne(ctx context.Context, addr netip.AddrPort, left int) (conn.Conn, error) {
	to := conn.Dialer{Addr: addr.String(), Timeout: d.timeout}
	if end, ok := ctx.Deadline(); ok {
		to.Timeout = time.Until(end) / time.Duration(left)
	}
	if d.dial != nil {
		to.Dial = func(ctx context.Context) (net.Conn, error) {
			nc, err := d.dial(ctx, to.Addr)
			return nc, connectError(err)
		}
	}
	c, err := to.Open(ctx, once{})
	return c.Conn, err
}

// once is a dial that is not repeated.
type once struct{}

// DialContext is not asked for.
func (once) DialContext() (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}

// LastResort is never: another address is tried.
func (once) LastResort() bool { return false }

// maxAddresses bounds what of a name is tried.
const maxAddresses = 16

// allowed are the addresses that may be connected to, each once and without zones.
func (d *Destinations) allowed(addrs []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		if a = a.Unmap(); a.Zone() == "" && d.permits(a) && !slices.Contains(out, a) && len(out) < maxAddresses {
			out = append(out, a)
		}
	}
	return out
}

// permits reports whether an address may be connected to. What the operator denies is denied; what he allows is allowed;
// of the rest, special addresses and those of this machine are denied. An address of IPv4 is denied also by way of a
// translator.
func (d *Destinations) permits(a netip.Addr) bool {
	inner, translated := conn.Embedded(a)
	switch {
	case config.Among(d.deny, a), translated && config.Among(d.deny, inner):
		return false
	case config.Among(d.allow, a):
		return true
	}
	return !conn.Special(a) && !ownAddresses.has(a) && (!translated || !ownAddresses.has(inner))
}

// own are the addresses of this machine, asked for again now and then.
type own struct {
	mu    sync.Mutex // guards the fields below
	addrs []netip.Addr
	at    time.Time
}

var ownAddresses own

// ownEvery is how long the machine's addresses are used.
const ownEvery = 5 * time.Second

// has reports whether the machine has an address. If the system does not tell, it has all.
func (o *own) has(a netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if time.Since(o.at) > ownEvery {
		all, err := net.InterfaceAddrs()
		if err != nil {
			return true
		}
		o.addrs, o.at = o.addrs[:0], time.Now()
		for _, n := range all {
			if p, err := netip.ParsePrefix(n.String()); err == nil {
				o.addrs = append(o.addrs, p.Addr().Unmap().WithZone(""))
			}
		}
	}
	return slices.Contains(o.addrs, a)
}
