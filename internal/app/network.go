package app

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/service"
	"github.com/sluice-proxy/sluice/internal/tunnel"
)

// Network is where connections come from and go to. The kernel is what nil stands for; tests bring one in memory.
type Network interface {
	Listen(ctx context.Context, network, address string) (net.Listener, error)
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

func (a *App) listenFunc() func(ctx context.Context, network, address string) (net.Listener, error) {
	if a.opts.Network == nil {
		return nil
	}
	return a.opts.Network.Listen
}

func (a *App) dialFunc() service.Dialer {
	if a.opts.Network == nil {
		return nil
	}
	return func(ctx context.Context, addr string) (net.Conn, error) { return a.opts.Network.Dial(ctx, "tcp", addr) }
}

// proxyIdle is how long a connection to a proxy without tunnels is kept.
const proxyIdle = 30 * time.Second

// viaProxy opens a tunnel through the HTTP proxy of a service.
func (a *App) viaProxy(ctx context.Context, proxy, addr string) (net.Conn, error) {
	scheme, at, _ := strings.Cut(proxy, "://")
	to := tunnel.Peer{Addr: at, HTTP1: scheme == "http"}
	if dial := a.dialFunc(); dial != nil {
		to.Dial = func(ctx context.Context) (net.Conn, error) { return dial(ctx, at) }
	}
	c, err := a.proxies.Open(ctx, proxy, to, tunnel.Request{Authority: addr})
	if err != nil {
		return nil, err
	}
	return c, nil
}
