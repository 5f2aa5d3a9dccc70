package conn_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/conn"
)

func streamSocket(t *testing.T, family int) int {
	t.Helper()
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}

func TestConnectSocket(t *testing.T) {
	for _, c := range []struct {
		name, at string
		family   int
	}{{"IPv4", "127.0.0.1:0", unix.AF_INET}, {"IPv6", "[::1]:0", unix.AF_INET6}} {
		t.Run(c.name, func(t *testing.T) {
			l, err := net.Listen("tcp", c.at)
			if err != nil {
				t.Skipf("SKIPPED: %v", err)
			}
			defer l.Close()
			to := l.Addr().(*net.TCPAddr).AddrPort()
			raw, err := conn.Connect(t.Context(), streamSocket(t, c.family), to, 20*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			s, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if local := raw.LocalAddr().String(); raw.Info().Remote != to || local != s.RemoteAddr().String() {
				t.Errorf("connected from %s to %s, accepted from %s at %s", local, raw.Info().Remote, s.RemoteAddr(), to)
			}
			if _, err := io.WriteString(raw, "hello"); err != nil {
				t.Fatal(err)
			}
			_ = raw.CloseWrite()
			if b, err := io.ReadAll(s); err != nil || string(b) != "hello" {
				t.Errorf("read %q, %v", b, err)
			}
		})
	}
}

func TestConnectSocketFails(t *testing.T) {
	held, to := taken(t) // nobody else can listen there
	defer func() { _ = unix.Close(held) }()
	if c, err := conn.Connect(t.Context(), streamSocket(t, unix.AF_INET), to, 0); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("where nobody listens: %v, %v", c, err)
	}
	ended, cancel := context.WithCancelCause(t.Context())
	why := errors.New("given up")
	cancel(why)
	full, fill := backlogged(t)
	defer fill()
	if c, err := conn.Connect(ended, streamSocket(t, unix.AF_INET), full, 0); !errors.Is(err, why) {
		t.Errorf("given up: %v, %v", c, err)
	}
	if c, err := conn.Connect(t.Context(), streamSocket(t, unix.AF_INET), full, time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("not in time: %v, %v", c, err)
	}
}

// taken is a socket that listens nowhere, and its address.
func taken(t *testing.T) (fd int, at netip.AddrPort) {
	t.Helper()
	fd = streamSocket(t, unix.AF_INET)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	return fd, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(sa.(*unix.SockaddrInet4).Port))
}

// backlogged is an address whose kernel takes no more connections, so that connecting waits.
func backlogged(t *testing.T) (at netip.AddrPort, done func()) {
	t.Helper()
	fd, at := taken(t)
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	fds := []int{fd}
	for range 4 {
		c := streamSocket(t, unix.AF_INET)
		_ = unix.Connect(c, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())})
		fds = append(fds, c)
	}
	return at, func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
}
