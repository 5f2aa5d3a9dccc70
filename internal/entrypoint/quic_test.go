package entrypoint_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// datagrams notes what becomes of the UDP sockets that it is given.
type datagrams struct {
	mu   sync.Mutex
	open []*datagram
	fail bool
}

type datagram struct {
	udp     *net.UDPConn
	door    *entrypoint.Door
	conns   drain.Count
	opened  bool
	drained bool
	closed  bool
	mu      *sync.Mutex
}

func (d *datagrams) openQUIC(udp *net.UDPConn, _ *net.UnixConn, door *entrypoint.Door) (entrypoint.QUIC, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail {
		return nil, errors.New("as the test wants it")
	}
	q := &datagram{udp: udp, door: door, mu: &d.mu}
	d.open = append(d.open, q)
	return q, nil
}

// last is the newest socket, and how many there have been.
func (d *datagrams) last() (*datagram, int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.open) == 0 {
		return nil, 0
	}
	return d.open[len(d.open)-1], len(d.open)
}

func (q *datagram) Open() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.opened = true
}

func (q *datagram) Drain(drain.Mode) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.drained = true
}
func (q *datagram) Wait(ctx context.Context) error         { return q.conns.Wait(ctx) }
func (*datagram) HandOver(*net.UnixConn) (*os.File, error) { return nil, errors.ErrUnsupported }
func (*datagram) Cede()                                    {}
func (q *datagram) Close() error {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	return q.udp.Close()
}

func (q *datagram) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

func (q *datagram) isOpen() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.opened
}

var visitor = netip.MustParseAddrPort("192.0.2.1:1000")

// secureOptions are those of an entrypoint that has HTTP/3, or does not.
func secureOptions(address string, three bool) *entrypoint.Options {
	return &entrypoint.Options{
		Address: address, HTTP: newLines().serve, HTTP3: three, TLS: func() *tls.Config { return &tls.Config{} }, MaxConnections: 2,
	}
}

// A UDP socket comes with the first configuration that wants it, goes with the last one, when its connections have ended,
// and is the same one in between, whatever plans come to nothing.
func TestPackets(t *testing.T) {
	var d datagrams
	s := entrypoint.NewSet(entrypoint.Setup{QUIC: d.openQUIC})
	prepare := func(w wanted) *entrypoint.Plan {
		t.Helper()
		p, err := s.Prepare(t.Context(), w)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	address := gatewaytest.FreeAddress(t) // for UDP, too
	p := prepare(wanted{"web": secureOptions(address, false)})
	p.Commit()
	p.Finish(0)
	if _, n := d.last(); n != 0 {
		t.Fatal("a UDP socket without need")
	}
	on, off := wanted{"web": secureOptions(address, true)}, wanted{"web": secureOptions(address, false)}

	p = prepare(on)
	q, _ := d.last()
	if q.udp.LocalAddr().String() != s.Addr("web").String() {
		t.Errorf("bound to %v beside %v", q.udp.LocalAddr(), s.Addr("web"))
	}
	if q.door.Admit(visitor) != nil {
		t.Error("admitted before the plan is in force")
	}
	if q.isOpen() {
		t.Error("read before the plan is in force: clients would be refused")
	}
	p.Abort()
	waitFor(t, "the socket of an aborted plan is closed", q.isClosed)

	p = prepare(on)
	q, _ = d.last()
	p.Commit()
	if !q.isOpen() {
		t.Error("not read although the plan is in force")
	}
	guest := q.door.Admit(visitor)
	if guest == nil || guest.Entrypoint() != "web" || guest.Live() == nil || guest.TLS() == nil || q.door.Crowded() != true {
		t.Fatalf("guest %+v", guest)
	}
	q.conns.Add() // the guest's: with none left the socket may be closed at any moment after the plan
	p.Revert(time.Minute)
	if q.door.Admit(visitor) != nil {
		t.Error("admitted after the plan was reverted")
	}
	if q.isClosed() || !q.drained {
		t.Error("a reverted plan must let its connections drain")
	}
	p = prepare(on) // it still drains, and is wanted again
	p.Commit()
	p.Finish(time.Minute)
	q.conns.Done()
	if again, n := d.last(); again != q || n != 2 || q.isClosed() {
		t.Errorf("%d sockets, closed %t", n, q.isClosed())
	}
	second := q.door.Admit(visitor)
	if second == nil || q.door.Admit(visitor) != nil {
		t.Error("max_connections")
	}
	guest.Leave()
	guest.Leave() // once
	if open := s.Stats()[0].Open; open != 1 {
		t.Errorf("%d open", open)
	}
	second.Leave()

	p = prepare(wanted{"other": secureOptions(gatewaytest.FreeAddress(t), true)})
	p.Abort()

	p = prepare(off)
	p.Commit()
	if q.door.Admit(visitor) != nil {
		t.Error("admitted though HTTP/3 is off")
	}
	p.Finish(time.Minute)
	waitFor(t, "the socket nobody wants is closed", q.isClosed)
	stop(t, s)
	for i, q := range d.open {
		if !q.isClosed() {
			t.Errorf("socket %d is left open", i)
		}
	}
}

// What cannot be had is an error of the plan, and leaves nothing.
func TestPacketsRefused(t *testing.T) {
	d := datagrams{fail: true}
	s := entrypoint.NewSet(entrypoint.Setup{QUIC: d.openQUIC})
	for name, w := range map[string]wanted{
		"a listener that fails": {"web": secureOptions("127.0.0.1:0", true)},
		"a unix socket":         {"web": secureOptions("unix:"+t.TempDir()+"/s", true)},
	} {
		_, err := s.Prepare(t.Context(), w)
		var at *entrypoint.BindError
		if !errors.As(err, &at) || at.Entrypoint != "web" || !strings.Contains(err.Error(), "udp") {
			t.Errorf("%s: %v", name, err)
		}
	}
	stop(t, s)
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what + ": it did not")
		}
	}
}

func stop(t *testing.T, s *entrypoint.Set) {
	t.Helper()
	ctx, cancel := contextWithPatience()
	defer cancel()
	if _, err := s.Shutdown(ctx, drain.Prompt); err != nil {
		t.Error(err)
	}
}
