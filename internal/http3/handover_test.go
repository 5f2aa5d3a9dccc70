//go:build linux

package http3_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http3"
)

// pair is two ends that messages go through, as two processes have them.
func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1]
}

// succeed has another listener take the socket of r over.
func succeed(t *testing.T, r *rig, h exchange.Handler) *rig {
	t.Helper()
	ours, theirs := pair(t)
	f, err := r.listener.HandOver(ours)
	if err != nil {
		t.Fatal(err)
	}
	pc, err := net.FilePacketConn(f)
	_ = f.Close()
	if err != nil {
		t.Fatal(err)
	}
	next := startOn(t, settings(h), pc.(*net.UDPConn), theirs)
	r.listener.Cede()
	r.refuse.Store(true)
	return next
}

// A socket that is handed over keeps its connections: packets of theirs are passed back, over two generations, while new
// connections belong to the newest. Large bodies go both ways.
func TestHandOver(t *testing.T) {
	named := func(name string) exchange.Handler {
		return exchange.HandlerFunc(func(x *exchange.Exchange) error {
			body, err := readAll(x)
			if err != nil {
				return err
			}
			return answer(x, 200, fmt.Sprintf("%s %s", name, body))
		})
	}
	first := start(t, settings(named("first")))
	big := strings.Repeat("0123456789", 30_000)
	ask := func(p *peer, body, want string) {
		t.Helper()
		if got := p.await(p.send(join(head("POST"), frame(0, []byte(body))), true)); got.status != "200" || got.body != want+" "+body {
			t.Fatalf("%s: %.100v", want, got)
		}
	}
	one := dial(t, first)
	ask(one, "a", "first")
	running := one.send(head("POST"), false)

	second := succeed(t, first, named("second"))
	two := dial(t, second)
	ask(two, "b", "second")
	ask(one, big, "first")
	ask(two, big, "second")

	third := succeed(t, second, named("third"))
	three := dial(t, third)
	ask(three, "c", "third")
	ask(two, big, "second")
	ask(one, big, "first")
	if _, err := running.Write(frame(0, []byte("z"))); err != nil {
		t.Fatal(err)
	}
	_ = running.Close()
	if got := one.await(running); got.body != "first z" {
		t.Errorf("the request that ran meanwhile: %+v", got)
	}
	_ = one.q.CloseWithError(0x100, "")
	for end := time.Now().Add(10 * time.Second); first.live.Len() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the end of a connection was not passed back")
		}
	}
	ask(three, "d", "third")
}

// A read that was under way when the socket was ceded may end with packets after it: those that begin connections are left to
// the other process, which gets them again, and are not refused.
func TestReadWhileCeding(t *testing.T) {
	const rest = "12345678 and more"
	packets := []string{
		"\x40ab" + rest, "\xc0\x00\x00\x00\x01\x0aab" + rest, // its own
		"\x40cd" + rest, "\xc0\x00\x00\x00\x01\x0acd" + rest, // of the process before
		"\xc0\x00\x00\x00\x01\x0axy" + rest, "\xc0\x00\x00\x00\x01\x08ab" + rest, "\xc0", // of clients that begin
	}
	own, before := [2]byte{'a', 'b'}, [2]byte{'c', 'd'}
	if got, want := http3.Sift(own, before, false, packets...), append(packets[:2:2], packets[4:]...); !slices.Equal(got, want) {
		t.Errorf("before: %q", got)
	}
	if got := http3.Sift(own, before, true, packets...); !slices.Equal(got, packets[:2]) {
		t.Errorf("after: %q", got)
	}
}

// A process that takes over and does not come up leaves everything as it was, and the next one may.
func TestHandOverFails(t *testing.T) {
	r := start(t, settings(echo))
	p := dial(t, r)
	ours, theirs := pair(t)
	f, err := r.listener.HandOver(ours)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	_ = theirs.Close()
	if got := p.await(p.send(get(), true)); got.status != "200" {
		t.Errorf("%+v", got)
	}
	next := succeed(t, r, echo)
	if got := dial(t, next); got.await(got.send(get(), true)).status != "200" {
		t.Error("the next one does not serve")
	}
	if got := p.await(p.send(get(), true)); got.status != "200" {
		t.Errorf("%+v", got)
	}
}

// A process that takes over and has no use for the socket, since its configuration has no HTTP/3, leaves it to this one, whose
// connections go on; new ones are refused.
func TestHandOverUnused(t *testing.T) {
	r := start(t, settings(echo))
	p := dial(t, r)
	running := p.send(head("POST"), false)
	ours, theirs := pair(t)
	f, err := r.listener.HandOver(ours)
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	_ = theirs.Close()
	r.listener.Cede()
	_, _ = running.Write(frame(0, []byte("z")))
	_ = running.Close()
	if got := p.await(running); got.status != "200" {
		t.Errorf("%+v", got)
	}
	_, err = client(t).Do(request(t, "GET", "https://"+r.addr, nil))
	var refused *quic.TransportError
	if !errors.As(err, &refused) || refused.ErrorCode != quic.ConnectionRefused {
		t.Errorf("refused with %v", err)
	}
}

// Who comes while the taker of a socket is getting ready waits for that, and is not refused.
func TestNotOpenYet(t *testing.T) {
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	r := shut(t, settings(echo), pc, nil)
	r.refuse.Store(true)
	own, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	d := &deaf{PacketConn: own, sent: make(chan struct{})}
	dialed := make(chan error, 1)
	go func() {
		q, err := quic.Dial(t.Context(), hearing{deaf: d}, pc.LocalAddr(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h3"}}, nil)
		if err == nil {
			err = q.CloseWithError(0x100, "")
		}
		dialed <- err
	}()
	within(t, "the first packet", d.sent)
	select {
	case err := <-dialed:
		t.Fatalf("answered before it is open: %v", err)
	case <-time.After(100 * time.Millisecond): // for what should not come
	}
	r.refuse.Store(false)
	r.listener.Open()
	if err := within(t, "the handshake", dialed); err != nil {
		t.Error(err)
	}
}

// One that is never opened can be closed.
func TestNeverOpen(t *testing.T) {
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	shut(t, settings(echo), pc, nil)
}

// hearing is a socket that tells of its first packet.
type hearing struct{ *deaf }

func (h hearing) ReadFrom(b []byte) (int, net.Addr, error) { return h.PacketConn.ReadFrom(b) }
