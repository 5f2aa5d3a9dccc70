package conn_test

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// bound is a socket of datagrams that tells what its datagrams came to.
func bound(t *testing.T, sa unix.Sockaddr, family, level, option int) (int, uint16) {
	t.Helper()
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.SetsockoptInt(fd, level, option, 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, sa); err != nil {
		t.Fatal(err)
	}
	got, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	switch a := got.(type) {
	case *unix.SockaddrInet4:
		return fd, uint16(a.Port)
	case *unix.SockaddrInet6:
		return fd, uint16(a.Port)
	}
	t.Fatalf("bound to %T", got)
	return -1, 0
}

// A batch of datagrams is received with the addresses of both ends, and answered from the address asked, in one call each.
func TestBatch(t *testing.T) {
	cases := []struct {
		name, ask             string
		sa                    unix.Sockaddr
		family, level, option int
	}{
		{"four", "127.0.0.3", &unix.SockaddrInet4{}, unix.AF_INET, unix.IPPROTO_IP, unix.IP_PKTINFO},
		{"six", "::1", &unix.SockaddrInet6{}, unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO},
		{"mapped", "127.0.0.3", &unix.SockaddrInet6{}, unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			fd, port := bound(t, tc.sa, tc.family, tc.level, tc.option)
			ask := netip.AddrPortFrom(netip.MustParseAddr(tc.ask), port)
			client, err := conn.DialDatagram(ask)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(client)
			texts := []string{"", "one", strings.Repeat("x", 65507)}
			for _, s := range texts {
				if e := conn.SendDatagram(client, []byte(s)); e != 0 {
					t.Fatal(e)
				}
			}
			b := conn.NewBatch(4)
			defer b.Free()
			n, e := b.Receive(fd, 0, 4, true)
			if n != len(texts) || e != 0 {
				t.Fatalf("received %d: %v", n, e)
			}
			for i, s := range texts {
				f := b.Flow(i)
				if string(b.Bytes(i)) != s || !b.Whole(i) || f.Local() != ask.Addr() || f.Client().Addr() != ask.Addr() && tc.ask == "::1" || f != b.Flow(0) {
					t.Errorf("datagram %d: %d bytes from %v to %v", i, len(b.Bytes(i)), f.Client(), f.Local())
				}
				b.Address(i, f.Peer())
			}
			if n, e := b.Send(fd, 0, len(texts)); n != len(texts) || e != 0 {
				t.Fatalf("sent %d: %v", n, e)
			}
			back := conn.NewBatch(4) // the socket is connected: what comes from another address is not there
			defer back.Free()
			if n, e := back.Receive(client, 0, 4, false); n != len(texts) || e != 0 || len(back.Bytes(2)) != 65507 {
				t.Errorf("answers: %d %v", n, e)
			}
			if n, e := back.Receive(client, 0, 4, false); e != unix.EAGAIN {
				t.Errorf("nothing waits, and there is %d %v", n, e)
			}
			if n, e := b.Send(fd, 0, len(texts)); n != len(texts) || e != 0 {
				t.Fatalf("sent %d again: %v", n, e)
			}
			for i, s := range texts {
				place := 3 - i
				if n, e := back.Receive(client, place, place+1, false); n != 1 || e != 0 || string(back.Bytes(place)) != s || !back.Whole(place) {
					t.Errorf("answer %d by itself: %d %v, %d bytes", i, n, e, len(back.Bytes(place)))
				}
			}
			if n, e := back.Receive(client, 0, 1, false); n != 0 || e != unix.EAGAIN {
				t.Errorf("nothing waits, and there is %d %v", n, e)
			}
		})
	}
}

// FuzzDestination reads what the kernel could never say, and finds again what an answer is sent with.
func FuzzDestination(f *testing.F) {
	f.Add([]byte{})
	f.Add(make([]byte, 64))
	f.Add([]byte("\x1c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x08\x00\x00\x00\x01\x00\x00\x00\x7f\x00\x00\x01\x7f\x00\x00\x01\x00\x00\x00\x00"))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\x29\x00\x00\x00\x32\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, control []byte) {
		if local := netip.AddrFrom16(conn.Destination(control)); local.Unmap().IsMulticast() {
			t.Errorf("answers would come from %v", local)
		}
	})
}
