package conn

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// controlRoom is what the kernel says of a datagram beside its bytes: one address.
const controlRoom = 64

// message is the kernel's struct mmsghdr.
type message struct {
	unix.Msghdr
	n uint32
}

// Batch is a row of places for datagrams that are received, or sent, by one system call. A place takes the largest
// datagram there is; its memory is taken only as far as datagrams reach. One goroutine uses it, and ends it by Free.
type Batch struct {
	msgs    []message
	vectors []unix.Iovec
	names   []unix.RawSockaddrInet6 // also those of IPv4, which are shorter
	control []byte
	bytes   []byte
	mapped  bool
}

// NewBatch makes n places. Their bytes are none of the collector's: mostly never touched, they would count as memory in
// use, which lets the heap grow by a multiple of them.
func NewBatch(n int) *Batch {
	b := &Batch{
		msgs: make([]message, n), vectors: make([]unix.Iovec, n), names: make([]unix.RawSockaddrInet6, n),
		control: make([]byte, n*controlRoom), mapped: true,
	}
	var err error
	if b.bytes, err = unix.Mmap(-1, 0, n*MaxDatagram, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		b.bytes, b.mapped = make([]byte, n*MaxDatagram), false // a limit of mappings
	}
	for i := range b.msgs {
		b.vectors[i].Base = &b.bytes[i*MaxDatagram]
		b.msgs[i].Iov = &b.vectors[i]
		b.msgs[i].SetIovlen(1)
	}
	return b
}

// Free gives the memory back. Nothing of the batch may be used any more.
func (b *Batch) Free() {
	if b.mapped {
		_ = unix.Munmap(b.bytes)
	}
	*b = Batch{}
}

// Len is the number of places.
func (b *Batch) Len() int { return len(b.msgs) }

// Receive fills places from the first on, up to but without end, with what waits at the socket, and returns how many.
// Without an error fewer than there was room for means that nothing more waits. With addressed, Flow can be asked.
func (b *Batch) Receive(fd, first, end int, addressed bool) (int, syscall.Errno) {
	if end-first == 1 && !addressed {
		return b.receiveOne(fd, first)
	}
	for i := first; i < end; i++ {
		m := &b.msgs[i]
		b.vectors[i].SetLen(MaxDatagram)
		m.Name, m.Namelen, m.Control = nil, 0, nil
		m.SetControllen(0)
		if addressed {
			m.Name, m.Namelen = (*byte)(unsafe.Pointer(&b.names[i])), uint32(unsafe.Sizeof(b.names[i]))
			m.Control = &b.control[i*controlRoom]
			m.SetControllen(controlRoom)
		}
		m.Flags = 0
	}
	for {
		n, _, e := syscall.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.msgs[first])), uintptr(end-first),
			unix.MSG_DONTWAIT, 0, 0)
		if e != syscall.EINTR {
			return int(n), e
		}
	}
}

// receiveOne is Receive of one datagram that nothing else is asked of: a cheaper call, which does not look for another.
func (b *Batch) receiveOne(fd, i int) (int, syscall.Errno) {
	n, e := TryRead(fd, b.bytes[i*MaxDatagram:(i+1)*MaxDatagram])
	if e != 0 {
		return 0, e
	}
	b.msgs[i].n, b.msgs[i].Flags = uint32(n), 0
	return 1, 0
}

// Bytes is the datagram at place i, valid until the place is used again.
func (b *Batch) Bytes(i int) []byte {
	return b.bytes[i*MaxDatagram : i*MaxDatagram+int(b.msgs[i].n)]
}

// Whole reports whether the place has the whole datagram.
func (b *Batch) Whole(i int) bool { return b.msgs[i].Flags&unix.MSG_TRUNC == 0 }

// Flow is whose datagram place i holds.
func (b *Batch) Flow(i int) Flow {
	name := &b.names[i]
	f := Flow{port: order(&name.Port)}
	if name.Family == unix.AF_INET {
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		f.four, f.client = true, netip.AddrFrom4(four.Addr).As16()
	} else {
		f.client, f.scope = name.Addr, name.Scope_id
	}
	if n := int(b.msgs[i].Controllen); n > 0 {
		f.local = destination(b.control[i*controlRoom : i*controlRoom+min(n, controlRoom)])
	}
	return f
}

func order(p *uint16) uint16 { return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(p))[:]) }

// destination reads which of its addresses a datagram came to (ip(7) IP_PKTINFO, RFC 3542 section 6.1); zero when it is
// none that an answer could come from.
func destination(control []byte) (local [16]byte) {
	for len(control) >= unix.CmsgLen(0) {
		h, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			return local
		}
		control = rest
		var ip netip.Addr
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			ip = netip.AddrFrom4([4]byte(data[4:8])) // ipi_spec_dst: also for a broadcast it is our own address
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			ip = netip.AddrFrom16([16]byte(data[:16]))
		}
		if ip.IsValid() && !ip.IsUnspecified() && !ip.Unmap().IsMulticast() {
			local = ip.As16()
		}
	}
	return local
}

// Peer is how datagrams are sent to the client of a flow, from the address that it has written to.
type Peer struct {
	name    unix.RawSockaddrInet6
	size    uint32
	control [controlRoom]byte
	used    int
}

// Peer makes the address for answers.
func (f *Flow) Peer() *Peer {
	p := &Peer{}
	p.name.Family, p.size = unix.AF_INET6, unix.SizeofSockaddrInet6
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&p.name.Port))[:], f.port)
	p.name.Addr, p.name.Scope_id = f.client, f.scope
	if f.four {
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(&p.name))
		port := four.Port
		p.name = unix.RawSockaddrInet6{}
		four.Family, four.Port, four.Addr = unix.AF_INET, port, netip.AddrFrom16(f.client).Unmap().As4()
		p.size = unix.SizeofSockaddrInet4
	}
	if f.local == [16]byte{} {
		return p
	}
	level, kind, size := int32(unix.IPPROTO_IPV6), int32(unix.IPV6_PKTINFO), unix.SizeofInet6Pktinfo
	if f.four {
		level, kind, size = unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&p.control[0]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(size))
	data := p.control[unix.CmsgLen(0):]
	if four := netip.AddrFrom16(f.local).Unmap(); f.four {
		copy(data[4:], four.AsSlice())
	} else {
		copy(data, f.local[:])
	}
	p.used = unix.CmsgSpace(size)
	return p
}

// Address says whom the datagram at place i, which has been received, is to be sent to.
func (b *Batch) Address(i int, to *Peer) {
	m := &b.msgs[i]
	b.vectors[i].SetLen(int(m.n))
	m.Name, m.Namelen = (*byte)(unsafe.Pointer(&to.name)), to.size
	m.Control = nil
	if m.SetControllen(to.used); to.used > 0 {
		m.Control = &to.control[0]
	}
}

// Send sends the places from first to end, which have been addressed. It returns how many have been sent before one
// failed, and the error only when that was the first.
func (b *Batch) Send(fd, first, end int) (int, syscall.Errno) {
	for {
		n, _, e := syscall.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&b.msgs[first])), uintptr(end-first),
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		if e != syscall.EINTR {
			return int(n), e
		}
	}
}

// SendDatagram sends one datagram on a connected socket. An error may be that of an earlier one, which the network has
// answered meanwhile: the datagram has not been sent then.
func SendDatagram(fd int, b []byte) syscall.Errno {
	for {
		_, _, e := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)),
			syscall.MSG_NOSIGNAL|syscall.MSG_DONTWAIT, 0, 0)
		if e != syscall.EINTR {
			return e
		}
	}
}

// DialDatagram opens a datagram socket connected to addr. It does not wait, since nothing is sent.
func DialDatagram(addr netip.AddrPort) (int, error) {
	const kind = unix.SOCK_DGRAM | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	var sa unix.Sockaddr
	family, ip := unix.AF_INET, addr.Addr().Unmap()
	if ip.Is4() {
		sa = &unix.SockaddrInet4{Port: int(addr.Port()), Addr: ip.As4()}
	} else {
		zone, err := zoneOf(ip)
		if err != nil {
			return -1, err
		}
		family, sa = unix.AF_INET6, &unix.SockaddrInet6{Port: int(addr.Port()), Addr: ip.As16(), ZoneId: zone}
	}
	fd, err := unix.Socket(family, kind, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if err := unix.Connect(fd, sa); err != nil {
		_ = unix.Close(fd)
		return -1, os.NewSyscallError("connect", err)
	}
	return fd, nil
}

// zoneOf is the number of the interface that an address is on.
func zoneOf(ip netip.Addr) (uint32, error) {
	zone := ip.Zone()
	if zone == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	i, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, err
	}
	return uint32(i.Index), nil
}
