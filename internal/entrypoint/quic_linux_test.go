package entrypoint_test

import (
	"net"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/entrypoint"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// A UDP socket of the entrypoint's name and address is taken over, one of another address is not.
func TestPacketsInherited(t *testing.T) {
	l, err := net.Listen("tcp", gatewaytest.FreeAddress(t)) // free for UDP, too
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	here, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	elsewhere, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	var fds []int
	for _, s := range []interface{ File() (*os.File, error) }{l.(*net.TCPListener), elsewhere.(*net.UDPConn), here.(*net.UDPConn)} {
		f, err := s.File()
		if err != nil {
			t.Fatal(err)
		}
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		fds = append(fds, fd)
	}
	var d datagrams
	in := entrypoint.Inherit([]string{"web", "web", "web"}, slices.Clone(fds), nil)
	s := entrypoint.NewSet(entrypoint.Setup{QUIC: d.openQUIC, Inherited: in})
	p, err := s.Prepare(t.Context(), wanted{"web": secureOptions(l.Addr().String(), true)})
	if err != nil {
		t.Fatal(err)
	}
	p.Commit()
	p.Finish(0)
	q, _ := d.last()
	if q.udp.LocalAddr().String() != here.LocalAddr().String() {
		t.Errorf("%v", q.udp.LocalAddr())
	}
	// Both are one socket: what comes is read by either.
	c, err := net.Dial("udp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("packet")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 10)
	if n, _, err := q.udp.ReadFrom(b); err != nil || string(b[:n]) != "packet" {
		t.Errorf("%q %v", b[:n], err)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	stop(t, s)
}
