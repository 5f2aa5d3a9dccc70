package entrypoint

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Inherited holds listening sockets that another process has passed on: the service manager, or the process that this
// one replaces. Descriptors and their names follow systemd's convention (sd_listen_fds(3)). A nil Inherited is empty.
type Inherited struct {
	log *slog.Logger

	held atomic.Bool // see Hold

	mu    sync.Mutex // guards socks
	socks []inheritedSocket
}

// inheritedSocket is one descriptor; its file has its own copy, so that closing either does not touch the other.
type inheritedSocket struct {
	name  string
	file  *os.File
	bound net.Addr
	pred  *os.File // of UDP: the end of a pair that leads to the process that had the socket; nil: there is none
}

func (s *inheritedSocket) close() error {
	if s.pred != nil {
		_ = s.pred.Close()
	}
	return s.file.Close()
}

// udp reports whether it is a socket of UDP.
func (s *inheritedSocket) udp() bool { return s.bound.Network() == "udp" }

// unnamed are names that carry no meaning; such sockets are matched by their address.
var unnamed = []string{"", "unknown", "stored", "connection"}

// Inherit takes over descriptors. Names beyond their number, or missing ones, are unnamed. What is neither a listening
// stream socket nor one of datagrams is closed with a warning.
func Inherit(names []string, fds []int, log *slog.Logger) *Inherited {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	h := &Inherited{log: log}
	for i, fd := range fds {
		name := ""
		if i < len(names) {
			name = names[i]
		}
		f, bound, err := inheritFD(fd)
		if err != nil {
			log.Warn("an inherited descriptor is not used", "name", name, "descriptor", fd, "error", err)
			continue
		}
		h.add(inheritedSocket{name: name, file: f, bound: bound})
	}
	return h
}

// add takes a descriptor in. The end of a pair belongs to the UDP socket in front of it.
func (h *Inherited) add(s inheritedSocket) {
	if s.bound.Network() != pairNetwork {
		h.socks = append(h.socks, s)
		return
	}
	if n := len(h.socks); n > 0 && h.socks[n-1].udp() && h.socks[n-1].pred == nil {
		h.socks[n-1].pred = s.file
		return
	}
	h.log.Warn("an inherited descriptor is not used", "name", s.name, "error", "it belongs to no UDP socket")
	_ = s.file.Close()
}

// Hold leaves inherited sockets of datagrams to the process that has passed them on, until Set.TakeOver.
func (h *Inherited) Hold() { h.held.Store(true) }

func (h *Inherited) release() {
	if h != nil {
		h.held.Store(false)
	}
}

func anonymous(name string) bool {
	for _, n := range unnamed {
		if name == n {
			return true
		}
	}
	return strings.HasSuffix(name, ".socket") // what systemd gives when the unit sets no name
}

// pick removes and returns the sockets for an entrypoint: those of its name, else unnamed ones of its address. A
// socket of its name on another address is an error: binding the right one would leave clients in the wrong queue.
func (h *Inherited) pick(name string, a *address) ([]inheritedSocket, error) {
	if h == nil {
		return nil, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var mine, rest []inheritedSocket
	named := false
	for _, s := range h.socks {
		named = named || s.name == name && s.udp() == a.udp
	}
	var bound net.Addr
	for _, s := range h.socks {
		switch {
		case s.udp() != a.udp:
			rest = append(rest, s)
		case named && s.name == name && !a.is(s.bound):
			return nil, fmt.Errorf("the inherited socket of that name is bound to %s", s.bound)
		case named && s.name == name, !named && anonymous(s.name) && a.is(s.bound):
			if bound != nil && bound.String() != s.bound.String() {
				if named {
					return nil, fmt.Errorf("inherited sockets of that name are bound to both %s and %s", bound, s.bound)
				}
				rest = append(rest, s)
				continue
			}
			bound = s.bound
			mine = append(mine, s)
		default:
			rest = append(rest, s)
		}
	}
	h.socks = rest
	return mine, nil
}

// take gives sock the inherited sockets of that entrypoint, if there are any.
func (h *Inherited) take(sock *socket, name string, accept rawAccept) (bool, error) {
	mine, err := h.pick(name, &sock.addr)
	if err != nil || len(mine) == 0 {
		return false, err
	}
	sock.inherited = true
	if sock.addr.udp {
		return true, sock.adoptDatagrams(mine, h.held.Load)
	}
	return true, sock.adoptFiles(mine, accept)
}

// Listener gives an inherited socket to a part that accepts by itself, such as management. Nil without an error is
// none. Of several with that name it takes the first; the others stay until Close.
func (h *Inherited) Listener(name, addr string) (net.Listener, error) {
	a, err := parseAddress(addr, name)
	if err != nil {
		return nil, err
	}
	mine, err := h.pick(name, &a)
	if err != nil || len(mine) == 0 {
		return nil, err
	}
	defer func() {
		for _, s := range mine {
			_ = s.file.Close()
		}
	}()
	return net.FileListener(mine[0].file)
}

// Close closes what nothing has taken, with a warning each.
func (h *Inherited) Close() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, s := range h.socks {
		h.log.Warn("an inherited socket is not used", "name", s.name, "address", s.bound.String())
		errs = append(errs, s.close())
	}
	h.socks = nil
	return errors.Join(errs...)
}

// takePackets gives the UDP socket beside a TCP one, if there is one with the entrypoint's name, or without a name, of that
// address.
func (h *Inherited) takePackets(name string, tcp *net.TCPAddr) (*net.UDPConn, *net.UnixConn, error) {
	if h == nil {
		return nil, nil, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, p := range h.socks {
		udp, ok := p.bound.(*net.UDPAddr)
		if !ok || p.name != name && !anonymous(p.name) || udp.Port != tcp.Port || udp.AddrPort().Addr().Unmap() != tcp.AddrPort().Addr().Unmap() {
			continue
		}
		h.socks = slices.Delete(h.socks, i, i+1)
		defer func() { _ = p.close() }() // what is used are copies
		pc, err := net.FilePacketConn(p.file)
		if err != nil {
			return nil, nil, err
		}
		conn, ok := pc.(*net.UDPConn)
		if !ok || p.pred == nil {
			return conn, nil, nil
		}
		pred, err := net.FileConn(p.pred)
		if err != nil {
			return nil, nil, errors.Join(err, pc.Close())
		}
		return conn, pred.(*net.UnixConn), nil
	}
	return nil, nil, nil
}

// Files returns a copy of every listening socket with the name of its entrypoint, which repeats for the sockets of
// one address. They are for a process that replaces this one; the caller closes them. Names that the convention
// cannot carry are given as "unknown", and are then found by address.
func (s *Set) Files() (names []string, files []*os.File, err error) {
	s.mu.Lock()
	table, udp := s.table, s.udp
	s.mu.Unlock()
	for name, b := range table {
		b.sock.passedOn.Store(true)
		for _, a := range b.sock.acceptors {
			f, ferr := a.file()
			if ferr != nil {
				for _, f := range files {
					_ = f.Close()
				}
				return nil, nil, fmt.Errorf("entrypoint %s: copying its socket: %w", name, ferr)
			}
			names, files = append(names, descriptorName(name)), append(files, f)
		}
	}
	for name, pk := range udp {
		handed, herr := pk.handOver()
		files = append(files, handed...)
		for range handed {
			names = append(names, descriptorName(name))
		}
		if herr != nil {
			for _, f := range files {
				_ = f.Close()
			}
			return nil, nil, fmt.Errorf("entrypoint %s: handing its UDP socket over: %w", name, herr)
		}
	}
	return names, files, nil
}

// handOver makes the descriptors for a process that takes the socket over: a copy, and the end of a pair behind it.
func (pk *packets) handOver() ([]*os.File, error) {
	next, theirs, err := socketPair()
	if err != nil {
		return nil, err
	}
	f, err := pk.quic.HandOver(next)
	if err != nil {
		_ = next.Close()
		_ = theirs.Close()
		return nil, err
	}
	return []*os.File{f, theirs}, nil
}

// pairNetwork is what the net package calls the sockets of a pair: a Unix socket that keeps messages apart.
const pairNetwork = "unixpacket"

// descriptorName is the name as LISTEN_FDNAMES can carry it.
func descriptorName(name string) string {
	if len(name) > 255 || anonymous(name) {
		return "unknown"
	}
	for i := range len(name) {
		if c := name[i]; c == ':' || c < ' ' || c > '~' {
			return "unknown"
		}
	}
	return name
}
