package entrypoint

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/conn"
)

const (
	// acceptTurn is how many connections one socket takes before others get the processor.
	acceptTurn = 16
	// backlog of a listening socket; the kernel caps it at net.core.somaxconn.
	backlog = 4096
	// sweepMax bounds what is taken from a queue when its socket is closed: more than it can hold has arrived since.
	sweepMax = 2 * backlog
	// keepAliveIdle and keepAliveInterval are seconds; keepAliveProbes unanswered ones end a connection.
	keepAliveIdle, keepAliveInterval, keepAliveProbes = 15, 15, 9
	// unixMode lets owner and group connect.
	unixMode = 0o660
)

// rawAccept takes a connection from a listening descriptor, as conn.Accept4 does.
type rawAccept func(fd int) (int, netip.AddrPort, syscall.Errno)

// rawAcceptor accepts by system calls inside the runtime poller's callback: no descriptor object of the net package,
// no socket option a connection (Linux copies them from the listening socket).
type rawAcceptor struct {
	f      *os.File
	rc     syscall.RawConn
	accept rawAccept
	local  netip.AddrPort // invalid: to be asked for, since the socket listens on every address
	onStep func(uintptr) bool

	// state of the accept loop
	s     *socket
	errno syscall.Errno
	pause backoff
}

func newRawAcceptor(fd int, bound net.Addr, accept rawAccept) (*rawAcceptor, error) {
	if accept == nil {
		accept = conn.Accept4
	}
	a := &rawAcceptor{f: os.NewFile(uintptr(fd), "listener"), accept: accept}
	rc, err := a.f.SyscallConn()
	if err != nil {
		_ = a.f.Close()
		return nil, err
	}
	a.rc = rc
	a.onStep = a.step
	if t, ok := bound.(*net.TCPAddr); ok {
		if ap := t.AddrPort(); !ap.Addr().IsUnspecified() {
			a.local = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
		}
	}
	return a, nil
}

func (a *rawAcceptor) run(s *socket) {
	a.s = s
	for {
		b := s.await()
		if b == nil {
			return
		}
		a.errno = 0
		if err := a.rc.Read(a.onStep); err != nil {
			return // closed
		}
		if a.errno != 0 {
			a.pause.wait(s, b, os.NewSyscallError("accept", a.errno))
			continue
		}
		a.pause.ok(s, b)
		runtime.Gosched()
	}
}

// step takes up to acceptTurn connections. False sleeps until more come; no edge is lost in between.
func (a *rawAcceptor) step(fd uintptr) bool {
	for range acceptTurn {
		b := a.s.owner.Load()
		if b == nil {
			return true
		}
		switch errno := a.take(int(fd), b); {
		case errno == syscall.EAGAIN:
			a.pause.ok(a.s, b)
			return false
		case errno != 0 && !transient(errno):
			a.errno = errno
			return true
		}
	}
	return true
}

// take accepts one connection and starts serving it.
func (a *rawAcceptor) take(fd int, b *binding) syscall.Errno {
	c, peer, errno := a.accept(fd)
	if errno != 0 {
		return errno
	}
	o := b.admit(peer.Addr())
	if o == nil {
		_ = unix.Close(c)
		return 0
	}
	local := a.local
	if !local.IsValid() {
		local = localAddr(c)
	}
	go b.serve(conn.NewRaw(c, conn.Info{Entrypoint: b.name, Local: local, Remote: peer}), o)
	return 0
}

// transient reports errors of one connection, which accept(2) passes on and which say nothing about the next one.
func transient(e syscall.Errno) bool {
	switch e {
	case syscall.ECONNABORTED, syscall.EINTR, syscall.EPROTO, syscall.ENETDOWN, syscall.ENETUNREACH, syscall.ENOPROTOOPT,
		syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENONET, syscall.EOPNOTSUPP, syscall.EPERM:
		return true
	}
	return false
}

// dropSYN is a packet filter for TCP that lets everything pass but what opens a connection. Established connections
// inherit it, and it does nothing to them.
var dropSYN = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13}, // the flags, RFC 9293 section 3.1
	{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, Jf: 1, K: 0x02},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
	{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
}

// refuse makes the kernel drop what opens a connection: a client that connects now tries again shortly and is refused
// then, instead of being connected and reset. Handshakes under way go on. A socket that others hold too is left as it
// is.
func (a *rawAcceptor) refuse(s *socket) bool {
	if s.addr.path != "" || s.inherited || s.passedOn.Load() {
		return false
	}
	var err error
	cerr := a.rc.Control(func(fd uintptr) {
		filter := unix.SockFprog{Len: uint16(len(dropSYN)), Filter: &dropSYN[0]}
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &filter)
	})
	return cerr == nil && err == nil
}

func (a *rawAcceptor) sweep(_ *socket, b *binding) {
	_ = a.rc.Control(func(fd uintptr) {
		for range sweepMax {
			if errno := a.take(int(fd), b); errno != 0 && !transient(errno) {
				return
			}
		}
	})
}

func (a *rawAcceptor) file() (*os.File, error) {
	var dup int
	var err error
	if cerr := a.rc.Control(func(fd uintptr) { dup, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); cerr != nil {
		return nil, cerr
	}
	if err != nil {
		return nil, os.NewSyscallError("dup", err)
	}
	return os.NewFile(uintptr(dup), "listener"), nil
}

func (a *rawAcceptor) Close() error { return a.f.Close() }

// localAddr asks for the address that a client has connected to.
func localAddr(fd int) netip.AddrPort {
	var sa syscall.RawSockaddrAny
	size := uint32(unsafe.Sizeof(sa))
	if _, _, e := syscall.RawSyscall(syscall.SYS_GETSOCKNAME, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size))); e != 0 {
		return netip.AddrPort{}
	}
	switch sa.Addr.Family {
	case syscall.AF_INET:
		p := (*syscall.RawSockaddrInet4)(unsafe.Pointer(&sa))
		return netip.AddrPortFrom(netip.AddrFrom4(p.Addr), fromNetwork(p.Port))
	case syscall.AF_INET6:
		p := (*syscall.RawSockaddrInet6)(unsafe.Pointer(&sa))
		return netip.AddrPortFrom(netip.AddrFrom16(p.Addr).Unmap(), fromNetwork(p.Port))
	}
	return netip.AddrPort{}
}

func fromNetwork(p uint16) uint16 {
	b := (*[2]byte)(unsafe.Pointer(&p))
	return uint16(b[0])<<8 | uint16(b[1])
}

// bindKernel opens n listening sockets on a resolved address; one for a unix socket. With shared set, another socket
// of this process that is about to be retired holds an overlapping address.
func bindKernel(s *socket, n int, shared bool, accept rawAccept) error {
	if s.addr.path != "" {
		fd, err := bindUnix(s.addr.path)
		if err != nil {
			return err
		}
		return s.adopt([]int{fd}, accept)
	}
	fds, err := bindGroup(s.addr, n, shared, bindIP)
	if err != nil {
		return err
	}
	return s.adopt(fds, accept)
}

// bindGroup binds n sockets to one address; the first as a member, too, with shared set.
func bindGroup(a address, n int, shared bool, bind func(a *address, member bool) (int, error)) ([]int, error) {
	fds := make([]int, 0, n)
	for i := range n {
		fd, err := bind(&a, shared || i > 0)
		if err != nil {
			closeAll(fds)
			return nil, err
		}
		fds = append(fds, fd)
		if a.port == 0 { // the others share what the system chose
			a.port = localAddr(fd).Port()
		}
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// adopt makes listening descriptors the acceptors of s. It owns them, also when it fails.
func (s *socket) adopt(fds []int, accept rawAccept) error {
	sa, err := unix.Getsockname(fds[0])
	if err != nil {
		closeAll(fds)
		return os.NewSyscallError("getsockname", err)
	}
	s.bound = netAddr(sa)
	for i, fd := range fds {
		a, err := newRawAcceptor(fd, s.bound, accept)
		if err != nil {
			closeAll(fds[i+1:])
			for _, done := range s.acceptors {
				_ = done.Close()
			}
			return err
		}
		s.acceptors = append(s.acceptors, a)
	}
	return nil
}

func netAddr(sa unix.Sockaddr) net.Addr {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return &net.TCPAddr{IP: a.Addr[:], Port: a.Port}
	case *unix.SockaddrInet6:
		zone := ""
		if a.ZoneId != 0 {
			if i, err := net.InterfaceByIndex(int(a.ZoneId)); err == nil {
				zone = i.Name
			}
		}
		return &net.TCPAddr{IP: a.Addr[:], Port: a.Port, Zone: zone}
	case *unix.SockaddrUnix:
		return &net.UnixAddr{Net: "unix", Name: a.Name}
	}
	return &net.UnixAddr{Net: "unknown"}
}

// bindIP opens one listening socket. A member of a group may join sockets that listen already. The first one may not:
// it is bound like an ordinary socket, so that an address in use by anybody is refused, also one whose user would
// share it, and becomes the head of the group only then.
func bindIP(a *address, member bool) (int, error) {
	fd, sa, err := openIP(a, unix.SOCK_STREAM)
	ok := false
	defer func() {
		if !ok && fd >= 0 {
			_ = unix.Close(fd)
		}
	}()
	if err != nil {
		return -1, err
	}
	if err := setInts(fd, [][3]int{
		{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1},
		{unix.SOL_SOCKET, unix.SO_REUSEPORT, b2i(member)},
	}); err != nil {
		return -1, err
	}
	if err := unix.Bind(fd, sa); err != nil {
		return -1, os.NewSyscallError("bind", err)
	}
	if err := setInts(fd, [][3]int{{unix.SOL_SOCKET, unix.SO_REUSEPORT, 1}}); err != nil {
		return -1, err
	}
	if err := setInherited(fd); err != nil {
		return -1, err
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return -1, os.NewSyscallError("listen", err)
	}
	ok = true
	return fd, nil
}

// openIP makes a socket of a type, of the family that a needs. An address without an IP is served by one IPv6 socket for both
// families, where the kernel has IPv6.
func openIP(a *address, kind int) (int, unix.Sockaddr, error) {
	kind |= unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	if a.ip.Is4() {
		fd, err := unix.Socket(unix.AF_INET, kind, 0)
		return fd, &unix.SockaddrInet4{Port: int(a.port), Addr: a.ip.As4()}, os.NewSyscallError("socket", err)
	}
	fd, err := unix.Socket(unix.AF_INET6, kind, 0)
	if !a.ip.IsValid() {
		if err != nil {
			fd, err = unix.Socket(unix.AF_INET, kind, 0)
			return fd, &unix.SockaddrInet4{Port: int(a.port)}, os.NewSyscallError("socket", err)
		}
		return fd, &unix.SockaddrInet6{Port: int(a.port)}, setInts(fd, [][3]int{{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0}})
	}
	if err != nil {
		return -1, nil, os.NewSyscallError("socket", err)
	}
	sa := &unix.SockaddrInet6{Port: int(a.port), Addr: a.ip.As16()}
	if zone := a.ip.Zone(); zone != "" {
		i, err := net.InterfaceByName(zone)
		if err != nil {
			return fd, nil, fmt.Errorf("zone %s: %w", zone, err)
		}
		sa.ZoneId = uint32(i.Index)
	}
	return fd, sa, setInts(fd, [][3]int{{unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1}})
}

// setInherited sets what accepted connections get from their listening socket.
func setInherited(fd int) error {
	return setInts(fd, [][3]int{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, keepAliveIdle},
		{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, keepAliveInterval},
		{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAliveProbes},
	})
}

func setInts(fd int, opts [][3]int) error {
	for _, o := range opts {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
	}
	return nil
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// bindUnix opens a listening unix socket. A socket file that nobody listens on is replaced. Nobody can connect before
// the mode is set, since listening comes last.
func bindUnix(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	abstract := path[0] == '@'
	if !abstract {
		err = removeStale(path)
	}
	if err == nil {
		err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	if !abstract {
		err = os.Chmod(path, unixMode)
	}
	if err == nil {
		err = os.NewSyscallError("listen", unix.Listen(fd, backlog))
	}
	if err != nil {
		_ = unix.Close(fd)
		if !abstract {
			_ = os.Remove(path)
		}
		return -1, err
	}
	return fd, nil
}

// removeStale removes a socket file that no process listens on any more.
func removeStale(path string) error {
	switch fi, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case fi.Mode().Type() != fs.ModeSocket:
		return errors.New("the path exists and is not a socket")
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); !errors.Is(err, unix.ECONNREFUSED) {
		return os.NewSyscallError("bind", unix.EADDRINUSE)
	}
	return os.Remove(path)
}
