package entrypoint_test

import (
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
)

// attach puts a packet filter on a socket.
func attach(t *testing.T, fd int, filter ...unix.SockFilter) {
	t.Helper()
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog); err != nil {
		t.Fatal(err)
	}
}

// A client whose connection is complete on its own side, while the last packet of its handshake is still on the way,
// is served when the address is removed meanwhile, and so is one in the middle of a shutdown.
func TestRemovedDuringHandshake(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		t.Run(address, func(t *testing.T) {
			s := newSet(t, entrypoint.Setup{Sockets: 1})
			var listener atomic.Int64
			s.SetAccept(func(fd int) (int, netip.AddrPort, syscall.Errno) {
				listener.Store(int64(fd))
				return conn.Accept4(fd)
			})
			apply(t, s, wanted{"a": {Address: address, HTTP: newLines().serve}})
			addr := s.Addr("a")
			mustDial(t, addr).want(t, "x", "a x")

			// Only what opens connections gets through: SYN without ACK.
			attach(t, int(listener.Load()),
				unix.SockFilter{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13},
				unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0x12},
				unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: 0x02},
				unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 1<<32 - 1},
				unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0})
			c := mustDial(t, addr)
			if err := c.send("x"); err != nil {
				t.Fatal(err)
			}
			apply(t, s, wanted{})
			if got, err := c.receive(); err != nil || got != "a x" {
				t.Errorf("got %q, %v", got, err)
			}
			if _, err := dial(addr); err == nil {
				t.Error("a connection is taken afterwards")
			}
		})
	}
}

// A client that never completes its handshake does not hold a removal for longer than its bound.
func TestRemovedDespiteHandshake(t *testing.T) {
	s := newSet(t, entrypoint.Setup{Sockets: 2})
	apply(t, s, wanted{"a": {Address: "127.0.0.1:0", HTTP: newLines().serve}})
	addr := s.Addr("a").(*net.TCPAddr)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	attach(t, fd, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0}) // it hears no answer
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: addr.Port, Addr: addr.AddrPort().Addr().As4()}); err != unix.EINPROGRESS {
		t.Fatal(err)
	}
	begin := time.Now()
	apply(t, s, wanted{})
	if took := time.Since(begin); took < entrypoint.HandshakeTime {
		t.Errorf("it was given %v", took)
	}
	if _, err := dial(addr); err == nil {
		t.Error("a connection is taken afterwards")
	}
}
