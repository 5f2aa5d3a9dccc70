package worker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/mutual"
	"github.com/sluice-proxy/sluice/internal/tunnel"
)

// GatewayOptions say how the egress gateway is reached.
type GatewayOptions struct {
	Address string        // host:port; the certificate must be for the host
	Trust   *mutual.Trust // of the gateway's certificate
	Mint    Mint
	Clock   *conn.Clock
	Log     *slog.Logger
	Dial    func(ctx context.Context) (net.Conn, error) // nil: the Address
}

// Gateway is the way out through an egress gateway. Tunnels of one actor share connections, those of two never do, since
// the certificate of a connection is all that tells the gateway whose they are.
type Gateway struct {
	o    GatewayOptions
	host string
	pool *tunnel.Pool[string] // by UID
}

// NewGateway returns a gateway that is not connected to yet.
func NewGateway(o GatewayOptions) (*Gateway, error) {
	host, _, err := net.SplitHostPort(o.Address)
	if err != nil || host == "" {
		return nil, fmt.Errorf("egress gateway %q: not host:port", o.Address)
	}
	return &Gateway{o: o, host: host, pool: tunnel.NewPool[string](tunnel.Limits{}, o.Clock)}, nil
}

// Egress gets the way out of an actor ready; for Options.
func (g *Gateway) Egress(ctx context.Context, a Actor) (Egress, func() error, error) {
	log := g.o.Log.With("actor", a.Ref, "uid", a.UID)
	c, err := newCredential(ctx, a, g.o.Mint, log)
	if err != nil {
		return nil, nil, err
	}
	config := mutual.TLS{Own: c, Peers: g.o.Trust, Protocols: []string{"h2", "http/1.1"}}.ClientOf(g.host)
	peer := tunnel.Peer{Addr: g.o.Address, Dial: g.o.Dial, TLS: func() *tls.Config { return config }}
	renewing, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { c.run(renewing, func() { g.pool.Retire(a.UID) }) })
	out := func(ctx context.Context, to netip.AddrPort) (conn.Conn, error) {
		if err := c.usable(); err != nil {
			return nil, err
		}
		t, err := g.pool.Open(ctx, a.UID, peer, tunnel.Request{Authority: to.String()})
		if err != nil {
			return nil, err // not a nil *Conn in an interface
		}
		return t, nil
	}
	return out, func() error {
		stop()
		wg.Wait()
		g.pool.Cut(a.UID)
		return nil
	}, nil
}

// Close ends all tunnels.
func (g *Gateway) Close() { g.pool.Close() }

// errNoGateway is why nothing is carried.
var errNoGateway = errors.New("no egress gateway is set")

// NoGateway is the way out where no gateway is set: what an actor dials is captured all the same, and reset.
func NoGateway(context.Context, Actor) (Egress, func() error, error) {
	out := func(context.Context, netip.AddrPort) (conn.Conn, error) { return nil, errNoGateway }
	return out, func() error { return nil }, nil
}
