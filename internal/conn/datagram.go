package conn

import (
	"net/netip"
	"strconv"
)

// MaxDatagram is room for every datagram: up to 65507 bytes over IPv4 and 65527 over IPv6 (RFC 768, RFC 8200).
const MaxDatagram = 1 << 16

// Flow tells the datagrams of one client from those of all others on a socket: where they come from, and on a socket of
// all addresses, which of these they were sent to. It is a key for maps.
type Flow struct {
	client, local [16]byte // IPv4 in its mapped form; local is zero where the socket has one address
	scope         uint32   // index of the interface of a link-local client
	port          uint16
	four          bool // the socket is of IPv4
}

// Client is where the datagrams come from. The zone of a link-local address is the number of its interface.
func (f *Flow) Client() netip.AddrPort {
	ip := netip.AddrFrom16(f.client).Unmap()
	if f.scope != 0 && ip.Is6() {
		ip = ip.WithZone(strconv.FormatUint(uint64(f.scope), 10))
	}
	return netip.AddrPortFrom(ip, f.port)
}

// Local is the address that they are sent to; invalid where the socket has one address only.
func (f *Flow) Local() netip.Addr {
	if f.local == [16]byte{} {
		return netip.Addr{}
	}
	return netip.AddrFrom16(f.local).Unmap()
}
