package conn

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// resolveEvery is how long the addresses of a name are used.
const resolveEvery = 30 * time.Second

// resolver remembers the addresses of one backend name and hands them out in turn, so that all are used.
type resolver struct {
	mu    sync.Mutex // guards the fields below
	addrs []string
	at    time.Time
	next  int
}

// lookup returns the addresses of name, host:port, to try, beginning with another one each time. When the name cannot be resolved again,
// the old addresses are used on.
func (r *resolver) lookup(ctx context.Context, name string) ([]string, error) {
	host, port, err := net.SplitHostPort(name)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return []string{name}, nil
	}
	r.mu.Lock()
	known, fresh := r.addrs, time.Since(r.at) < resolveEvery
	r.mu.Unlock()
	if !fresh {
		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil && len(known) == 0 {
			return nil, err
		}
		if err == nil {
			known = make([]string, len(ips))
			for i, ip := range ips {
				known[i] = net.JoinHostPort(ip, port)
			}
		}
		r.mu.Lock()
		r.addrs, r.at = known, time.Now()
		r.mu.Unlock()
	}
	r.mu.Lock()
	r.next++
	k := r.next
	r.mu.Unlock()
	out := make([]string, 0, len(known))
	for i := range known {
		out = append(out, known[(i+k)%len(known)])
	}
	return out, nil
}

// Literal is the address that is dialed, if Addr is one: nothing has to be looked up then.
func (d *Dialer) Literal() (string, bool) {
	host, _, err := net.SplitHostPort(d.Addr)
	if err != nil {
		return "", false
	}
	_, err = netip.ParseAddr(host)
	return d.Addr, err == nil
}

// Addresses looks up what connections are opened to, the one whose turn it is first.
func (d *Dialer) Addresses(ctx context.Context) ([]string, error) {
	addrs, err := d.names.lookup(ctx, d.Addr)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrResolve, err)
	}
	return addrs, nil
}
