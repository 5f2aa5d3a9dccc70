package entrypoint

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/drain"
)

// QUIC serves HTTP/3 on a UDP socket, which it owns.
type QUIC interface {
	// Open begins to read the socket: the door has an owner. It undoes Drain for connections that come later.
	Open()
	// Drain tells the connections that are there, and those that shake hands, to end.
	Drain(mode drain.Mode)
	// Wait returns nil once no connection is left, or the context's error.
	Wait(ctx context.Context) error
	// HandOver returns a copy of the socket for another process, which passes packets of connections that stay here back by
	// the other end of next.
	HandOver(next *net.UnixConn) (*os.File, error)
	// Cede leaves the socket to the process that it was handed over to. Without one it does nothing.
	Cede()
	// Close ends what is left and closes the socket.
	Close() error
}

// OpenQUIC serves a UDP socket, which is not read before Open. Who begins a connection on it is asked at the door. pred leads to the process that
// has handed the socket over; nil: none has.
type OpenQUIC func(udp *net.UDPConn, pred *net.UnixConn, door *Door) (QUIC, error)

// Door is where clients of QUIC come in: it leads to the entrypoint that has the socket at the moment. Its methods do not
// block.
type Door struct {
	owner atomic.Pointer[binding] // nil: all are refused
}

// Guest is a client that was admitted at a Door.
type Guest struct {
	b       *binding
	o       *Options
	removed atomic.Bool
}

// Admit counts a client that begins a connection, or returns nil when it is not allowed, there are too many, or the
// entrypoint does not have HTTP/3. The guest must Leave.
func (d *Door) Admit(client netip.AddrPort) *Guest {
	b := d.owner.Load()
	if b == nil || !b.opts.Load().HTTP3 {
		return nil
	}
	o := b.admit(client.Addr())
	if o == nil {
		return nil
	}
	return &Guest{b: b, o: o}
}

// Crowded reports whether half of the connections that may be open are: addresses that may be forged cost too much then.
func (d *Door) Crowded() bool {
	b := d.owner.Load()
	return b != nil && b.counts.open.Load() >= b.opts.Load().maxConnections()/2
}

// HandshakeTimeout bounds a handshake that begins now.
func (d *Door) HandshakeTimeout() time.Duration {
	if b := d.owner.Load(); b != nil {
		return b.opts.Load().handshakeTimeout()
	}
	return DefaultHandshakeTimeout
}

// Entrypoint is the name of the guest's entrypoint.
func (g *Guest) Entrypoint() string { return g.b.name }

// TLS is what the entrypoint serves by TLS; nil refuses.
func (g *Guest) TLS() *tls.Config { return g.o.TLS() }

// Live knows the connections of the entrypoint that may be told to end.
func (g *Guest) Live() *drain.Tracker { return &g.b.live }

// Failed counts a handshake that has failed.
func (g *Guest) Failed(err error) {
	g.b.counts.handshakes.Add(1)
	g.b.log.Debug("quic handshake", "entrypoint", g.b.name, "error", err)
}

// Leave undoes Admit, once.
func (g *Guest) Leave() {
	if !g.removed.Swap(true) {
		g.b.leave()
	}
}

// packets is a bound UDP address. The listening socket of the same address is another thing with a life of its own; this
// one ends when no configuration wants it and its connections have ended.
type packets struct {
	key  string
	quic QUIC
	door Door

	held   int           // by the table in force and by a plan; guarded by the set's lock, as is ending
	ending bool          // nobody may hold it any more
	closed chan struct{} // when it is
}

var errNoQUIC = errors.New("HTTP/3 is not to be had here")

// holdPackets finds or opens the UDP socket beside the address of b, for a plan.
func (p *Plan) holdPackets(ctx context.Context, b *binding) error {
	s := p.set
	for {
		s.mu.Lock()
		have := s.packets[b.sock.addr.key]
		if have == nil || !have.ending {
			if have != nil {
				have.held++
				p.packets[b.name] = have
			}
			s.mu.Unlock()
			if have != nil {
				return nil
			}
			break
		}
		s.mu.Unlock()
		<-have.closed // its address is free then
	}
	opened, err := s.openPackets(ctx, b)
	if err != nil {
		return fmt.Errorf("udp: %w", err)
	}
	p.packets[b.name] = opened
	return nil
}

// openPackets binds the UDP socket of the address that b has for TCP.
func (s *Set) openPackets(ctx context.Context, b *binding) (*packets, error) {
	tcp, ok := b.sock.bound.(*net.TCPAddr)
	if !ok || s.setup.QUIC == nil || s.setup.Listen != nil {
		return nil, errNoQUIC
	}
	a := &b.sock.addr
	udp, pred, err := s.setup.Inherited.takePackets(b.name, tcp)
	if err == nil && udp == nil {
		udp, err = bindPackets(ctx, a, tcp.Port)
	}
	if err != nil {
		return nil, err
	}
	pk := &packets{key: a.key, held: 1, closed: make(chan struct{})}
	if pk.quic, err = s.setup.QUIC(udp, pred, &pk.door); err != nil {
		if pred != nil {
			_ = pred.Close()
		}
		return nil, errors.Join(err, udp.Close())
	}
	s.mu.Lock()
	s.packets[a.key] = pk
	s.mu.Unlock()
	return pk, nil
}

// bindPackets binds a UDP socket.
func bindPackets(ctx context.Context, a *address, port int) (*net.UDPConn, error) {
	host := ""
	if a.ip.IsValid() {
		host = a.ip.String()
	}
	var lc net.ListenConfig
	pc, err := lc.ListenPacket(ctx, strings.Replace(a.network(), "tcp", "udp", 1), net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	return pc.(*net.UDPConn), nil // as networks of that name are
}

// assignPackets gives each UDP socket of to to its entrypoint, and none to those of from that are not in to.
func assignPackets(to, from map[string]*packets, table map[string]*binding) {
	kept := make(map[*packets]bool, len(to))
	for name, pk := range to {
		kept[pk] = true
		pk.door.owner.Store(table[name])
		pk.quic.Open()
	}
	for _, pk := range from {
		if !kept[pk] {
			pk.door.owner.Store(nil)
		}
	}
}

// dropPackets gives up a hold on each of them. What nobody holds any more has its connections drain, and is closed when they
// have ended, or after bound.
func (s *Set) dropPackets(all map[string]*packets, bound time.Duration) {
	for _, pk := range all {
		s.mu.Lock()
		pk.held--
		last := pk.held == 0
		s.mu.Unlock()
		if last {
			pk.quic.Drain(drain.Gentle)
			s.closing.Go(func() { s.closePackets(pk, bound) })
		}
	}
}

// closePackets closes the socket once it serves nobody, unless a plan wants it again meanwhile.
func (s *Set) closePackets(pk *packets, bound time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), max(bound, 0))
	defer cancel()
	_ = pk.quic.Wait(ctx)
	s.mu.Lock()
	if pk.held > 0 || pk.ending {
		s.mu.Unlock()
		return
	}
	pk.ending = true
	s.mu.Unlock()
	if err := pk.quic.Close(); err != nil {
		s.log.Warn("closing a UDP socket", "error", err)
	}
	s.mu.Lock()
	delete(s.packets, pk.key)
	s.mu.Unlock()
	close(pk.closed)
}
