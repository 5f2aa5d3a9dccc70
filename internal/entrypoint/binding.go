package entrypoint

import (
	"log/slog"
	"net/netip"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
)

// binding is a name on a socket. It lives as long as both go together in the configuration, and then until its last
// connection has ended.
type binding struct {
	set    *Set
	log    *slog.Logger
	name   string
	sock   *socket
	counts *counts
	opts   atomic.Pointer[Options]
	live   drain.Tracker // what may be told to end
	conns  drain.Count   // connections, from accept to the end of their goroutine

	retired atomic.Bool
	timer   *time.Timer // forces the connections; set once retired
}

// admit counts a new connection, as accepted only once its client is known, or returns nil when its peer is not allowed
// or there are too many, of it or of all.
func (b *binding) admit(peer netip.Addr) *Options {
	o := b.opts.Load()
	proxied := o.proxied(peer) // its client is not known yet
	if !proxied && !o.allows(peer) {
		b.counts.refused.Add(1)
		return nil
	}
	if b.counts.open.Add(1) > o.maxConnections() || !proxied && !b.enter(peer, o) {
		b.counts.open.Add(-1)
		b.counts.refused.Add(1)
		return nil
	}
	if !proxied {
		b.counts.accepted.Add(1)
	}
	b.conns.Add()
	return o
}

// enter counts a connection of a client that may not have any number of them.
func (b *binding) enter(client netip.Addr, o *Options) bool {
	return o.MaxPerClient == 0 || b.counts.clients.enter(client, o.MaxPerClient)
}

// leave undoes admit.
func (b *binding) leave() {
	b.counts.open.Add(-1)
	if b.conns.Done() == 0 && b.retired.Load() {
		b.set.forget(b)
	}
}

// serve is a connection's goroutine. What lies under a request on its stack is kept small: see stackReserve.
func (b *binding) serve(c conn.Conn, o *Options) {
	growStack()
	defer b.over(c)
	defer b.recover(c)
	switch {
	case !b.introduced(c, o):
	case o.MaxPerClient > 0:
		b.counted(c, o)
	default:
		b.speak(c, o)
	}
}

// over ends a connection. Servers close what they serve; closing again covers every other way out.
func (b *binding) over(c conn.Conn) {
	_ = c.Close()
	b.leave()
}

// recover keeps a programming error in the service of one connection from ending all others.
func (b *binding) recover(c conn.Conn) {
	if r := recover(); r != nil {
		b.counts.panicked.Add(1)
		b.log.Error("connection ended by a panic", "entrypoint", b.name, "peer", c.Info().Remote, "panic", r, "stack", string(debug.Stack()))
	}
}

// counted serves a connection that its client may not have any number of.
func (b *binding) counted(c conn.Conn, o *Options) {
	defer b.counts.clients.leave(c.Info().Remote.Addr())
	b.speak(c, o)
}

// speak hands a connection to the server of its protocol.
func (b *binding) speak(c conn.Conn, o *Options) {
	pass := o.Streams != nil
	if o.Passes != nil {
		var err error
		if c, pass, err = b.classify(c, o); err != nil {
			return
		}
	}
	switch {
	case pass:
		b.stream(c, o)
	case o.TLS != nil:
		b.speakTLS(c, o)
	default:
		o.HTTP(c, &b.live)
	}
}

// speakTLS ends TLS, and hands what is inside to the server of its protocol.
func (b *binding) speakTLS(c conn.Conn, o *Options) {
	s, err := b.secure(c, o)
	switch {
	case err != nil:
		answerClearText(c, err)
	case s.info.TLS.NegotiatedProtocol == "h2" && o.H2 != nil:
		o.H2(s, &b.live)
	default:
		o.HTTP(s, &b.live)
	}
}

// introduced finds out for whom the peer speaks, if it is a load balancer. False: the connection is to be closed.
func (b *binding) introduced(c conn.Conn, o *Options) bool {
	if !o.proxied(c.Info().Remote.Addr()) {
		return true
	}
	h := &handshake{wire: &wire{Conn: c}}
	b.live.Enter(&h.ticket, h)
	defer h.ticket.Leave()
	if err := conn.ReadProxyHeader(h.wire, o.handshakeTimeout()); err != nil {
		b.counts.proxied.Add(1)
		b.log.Debug("proxy protocol", "entrypoint", b.name, "peer", c.Info().Remote, "error", err)
		return false
	}
	if client := c.Info().Remote.Addr(); !o.allows(client) || !b.enter(client, o) {
		b.counts.refused.Add(1)
		return false
	}
	b.counts.accepted.Add(1)
	return true
}
