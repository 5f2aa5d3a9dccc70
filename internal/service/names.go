package service

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

const (
	// lookupBound is how long finding the addresses of a name may take.
	lookupBound = 5 * time.Second
	// lookupEvery is how long they are used, and lookupAgain how long a failure holds.
	lookupEvery, lookupAgain = 30 * time.Second, time.Second
)

// names finds the addresses of one backend for who cannot wait: a lookup runs on its own, and meanwhile the old addresses
// are used. It belongs to a pool, and goes where that does.
type names struct {
	dialer *conn.Dialer

	mu      sync.Mutex // guards all below
	addrs   []netip.AddrPort
	err     error     // of the last lookup, if there is no address
	until   time.Time // when the next one is due
	next    int
	cancel  context.CancelFunc // of the lookup under way; nil: none is
	done    chan struct{}
	waiting []exchange.Waker
	closed  bool
}

func (n *names) begin(addr string) { n.dialer = &conn.Dialer{Addr: addr} }

// address is one of the addresses, another one each time; invalid without an error: wake is called when there may be one.
func (n *names) address(wake exchange.Waker) (netip.AddrPort, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed && n.cancel == nil && !time.Now().Before(n.until) {
		n.start()
	}
	if len(n.addrs) > 0 {
		n.next++
		return n.addrs[n.next%len(n.addrs)], nil
	}
	if n.cancel == nil {
		return netip.AddrPort{}, n.err
	}
	if wake != nil && !slices.Contains(n.waiting, wake) {
		n.waiting = append(n.waiting, wake)
	}
	return netip.AddrPort{}, nil
}

// start finds the addresses: of a literal one at once. n is locked.
func (n *names) start() {
	if text, ok := n.dialer.Literal(); ok {
		if a, err := netip.ParseAddrPort(text); err == nil {
			n.addrs, n.until = []netip.AddrPort{a}, time.Now().Add(100*365*24*time.Hour)
			return
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), lookupBound)
	n.cancel, n.done = cancel, make(chan struct{})
	go n.lookup(ctx, n.done)
}

func (n *names) lookup(ctx context.Context, done chan struct{}) {
	defer close(done)
	found, err := n.dialer.Addresses(ctx)
	var addrs []netip.AddrPort
	for _, text := range found {
		if a, err := netip.ParseAddrPort(text); err == nil {
			addrs = append(addrs, a)
		}
	}
	n.mu.Lock()
	n.cancel()
	n.cancel, n.err = nil, err
	if n.until = time.Now().Add(lookupEvery); err != nil {
		n.until = time.Now().Add(lookupAgain)
	}
	if len(addrs) > 0 {
		n.addrs = addrs
	}
	waiting := n.waiting
	n.waiting = nil
	n.mu.Unlock()
	for _, w := range waiting {
		w.Wake()
	}
}

// close ends a lookup under way.
func (n *names) close() {
	n.mu.Lock()
	n.closed = true
	cancel, done := n.cancel, n.done
	if cancel != nil {
		cancel()
	}
	n.mu.Unlock()
	if cancel != nil {
		<-done
	}
}

// Address is where datagrams for the backend go. It does not wait: invalid without an error means that the name is being
// looked up, and wake is called when that has ended.
func (b *Backend) Address(wake exchange.Waker) (netip.AddrPort, error) { return b.names.address(wake) }
