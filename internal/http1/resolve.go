package http1

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
	name string // host:port

	mu    sync.Mutex // guards the fields below
	addrs []string
	at    time.Time
	next  int
}

// lookup returns the addresses to try, beginning with another one each time. When the name cannot be resolved again,
// the old addresses are used on.
func (r *resolver) lookup(ctx context.Context) ([]string, error) {
	host, port, err := net.SplitHostPort(r.name)
	if err != nil {
		return nil, err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return []string{r.name}, nil
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

// Literal is the address of the backend, if its name is one: nothing has to be looked up then.
func (p *Pool) Literal() (string, bool) {
	host, _, err := net.SplitHostPort(p.names.name)
	if err != nil {
		return "", false
	}
	_, err = netip.ParseAddr(host)
	return p.names.name, err == nil
}

// Addresses looks up what connections to the backend are opened to, the one whose turn it is first.
func (p *Pool) Addresses(ctx context.Context) ([]string, error) {
	addrs, err := p.names.lookup(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrResolve, err)
	}
	return addrs, nil
}
