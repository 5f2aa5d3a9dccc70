package entrypoint

import (
	"net/netip"
	"sync"
)

// clientBits is how much of an IPv6 address tells clients apart: one of them usually has a whole /64.
const clientBits = 64

// clients counts the open connections of each client. It holds no more entries than there are connections.
type clients struct {
	mu   sync.Mutex // guards open
	open map[netip.Addr]int
}

// enter counts a connection of a client, unless it has most already.
func (k *clients) enter(client netip.Addr, most int) bool {
	client = clientOf(client)
	k.mu.Lock()
	defer k.mu.Unlock()
	if !client.IsValid() { // of a unix socket: nothing tells one from another
		return true
	}
	if k.open[client] >= most {
		return false
	}
	if k.open == nil {
		k.open = make(map[netip.Addr]int)
	}
	k.open[client]++
	return true
}

// leave undoes enter.
func (k *clients) leave(client netip.Addr) {
	client = clientOf(client)
	k.mu.Lock()
	defer k.mu.Unlock()
	if !client.IsValid() {
		return
	}
	if k.open[client]--; k.open[client] == 0 {
		delete(k.open, client)
	}
}

// clientOf is the address that stands for a client.
func clientOf(a netip.Addr) netip.Addr {
	if a = a.Unmap(); !a.Is6() {
		return a
	}
	p, err := a.WithZone("").Prefix(clientBits)
	if err != nil {
		return a // not reached: the number of bits is legal
	}
	return p.Addr()
}
