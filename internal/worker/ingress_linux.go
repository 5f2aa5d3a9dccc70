package worker

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/tunnel"
)

// Names on the wire between a router and a worker.
const (
	targetField = "ate-target-actor"
	staleField  = "X-Ate-Assignment-Stale"
)

// Bounds of what comes in.
const (
	maxPeers         = 1024 // connections of routers
	maxStrangers     = 256  // connections that have not proved whose they are; for another one the oldest goes
	handshakeTimeout = 10 * time.Second
	peerIdle         = 2 * time.Minute
)

// Ingress takes the tunnels of routers to the actors of a worker.
type Ingress struct {
	w      *Worker
	config *tls.Config
	server *tunnel.Server
	log    *slog.Logger

	refusals strangersLog

	live  drain.Tracker
	slots chan struct{}
	wg    sync.WaitGroup

	mu        sync.Mutex // guards strangers
	strangers []net.Conn // the oldest first
}

// NewIngress returns an ingress for connections that config says whom to believe of. It must require client certificates
// and offer h2 and http/1.1.
func NewIngress(w *Worker, config *tls.Config) *Ingress {
	i := &Ingress{w: w, config: config, log: w.o.Log, refusals: strangersLog{log: w.o.Log}, slots: make(chan struct{}, maxPeers)}
	i.server = tunnel.NewServer(tunnel.ServerConfig{Accept: i.accept, KeepAlive: peerIdle, Streams: w.o.Bounds.Tunnels}, w.o.Clock)
	return i
}

// accept finds the actor that a tunnel is for and connects to it. Only the port of the authority counts.
func (i *Ingress) accept(ctx context.Context, ask *tunnel.Ask) (tunnel.Accepted, error) {
	to, err := exchange.ParseAuthority([]byte(ask.Authority))
	if err != nil || to.Port == 0 {
		return tunnel.Accepted{}, &tunnel.Refusal{Status: 400, Body: "bad port"}
	}
	targets := ask.Values(targetField)
	if len(targets) != 1 {
		i.w.counts.Stale.Add(1)
		return tunnel.Accepted{}, misdirected
	}
	t, err := i.w.Dial(ctx, targets[0], to.Port)
	switch {
	case errors.Is(err, ErrStale):
		return tunnel.Accepted{}, misdirected
	case errors.Is(err, ErrBusy):
		return tunnel.Accepted{}, &tunnel.Refusal{Status: 503, Body: "too many connections"}
	case err != nil:
		i.log.Debug("a tunnel was refused", "actor", targets[0], "port", to.Port, "error", err)
		return tunnel.Accepted{}, &tunnel.Refusal{Status: 502, Body: "bad gateway"}
	}
	unserved := context.AfterFunc(ctx, t.Close) // the peer has gone before it could be answered
	return tunnel.Accepted{Serve: func(c conn.Conn) {
		if unserved() {
			t.Relay(c)
		}
	}}, nil
}

// misdirected tells a router to ask again where the actor is. Nothing that it wanted to send was looked at.
var misdirected = &tunnel.Refusal{Status: 421, Fields: []tunnel.Field{{Name: staleField, Value: "true"}}, Body: "misdirected request"}

// Serve accepts until ctx ends; then it ends what is open and waits for it.
func (i *Ingress) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	defer i.wg.Wait()
	defer i.live.Force()
	wait := time.Duration(0)
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		case err != nil:
			wait = min(max(2*wait, 5*time.Millisecond), time.Second)
			i.log.Error("accepting a tunnel connection", "error", err, "again_in", wait)
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
			continue
		}
		wait = 0
		if r, ok := conn.RawOf(c); ok { // TLS above it costs less
			c = r
		}
		i.arrive(c)
		i.wg.Go(func() { i.serve(ctx, c) })
	}
}

// arrive makes room for a stranger. Whoever may come in is one for a moment only, so that the oldest is not likely to.
func (i *Ingress) arrive(c net.Conn) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.strangers) == maxStrangers {
		_ = i.strangers[0].Close()
		i.strangers = i.strangers[1:]
	}
	i.strangers = append(i.strangers, c)
}

// known takes out who is no stranger any more, or has gone.
func (i *Ingress) known(c net.Conn) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.strangers = slices.DeleteFunc(i.strangers, func(s net.Conn) bool { return s == c })
}

// serve is one connection of a router, if it proves to be one.
func (i *Ingress) serve(ctx context.Context, c net.Conn) {
	secure := tls.Server(c, i.config)
	within, cancel := context.WithTimeout(ctx, handshakeTimeout)
	err := secure.HandshakeContext(within)
	cancel()
	i.known(c)
	if err != nil {
		i.refusals.warn("refused a tunnel connection", "from", c.RemoteAddr(), "error", err)
		_ = c.Close()
		return
	}
	select {
	case i.slots <- struct{}{}:
		defer func() { <-i.slots }()
	default:
		_ = c.Close()
		return
	}
	state := secure.ConnectionState()
	p := conn.NewPlain(secure, conn.Info{TLS: &state, Identity: conn.PeerIdentity(&state)})
	if state.NegotiatedProtocol == "h2" {
		i.server.ServeHTTP2(p, &i.live)
		return
	}
	i.server.ServeHTTP1(p, &i.live)
}
