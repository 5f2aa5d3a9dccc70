package app

import (
	"context"
	"net"

	"github.com/sluice-proxy/sluice/internal/service"
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
