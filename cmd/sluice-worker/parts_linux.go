package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/fabric"
	"github.com/sluice-proxy/sluice/internal/mutual"
	"github.com/sluice-proxy/sluice/internal/worker"
)

// parts of the process, in the order in which they start. They stop in reverse: no more orders, then every actor, and what
// their connections run through last.
func (s *settings) parts(log *slog.Logger) (*drain.Group, error) {
	run, err := fabric.NewRun(s.run)
	if err != nil {
		return nil, err
	}
	var g drain.Group
	clock, orders := conn.NewClock(), worker.NewOrders(s.gateway)
	g.Add(drain.Part{Name: "clock", Run: clock.Run})
	o := worker.Options{
		Run: run, Slots: s.slots, Clock: clock, Log: log, Bounds: worker.Bounds{Rate: s.dials}, SuspendDrain: s.suspendDrain, Egress: worker.NoGateway, Exited: orders.Exited,
	}
	if s.gateway != "" {
		gateway, err := s.egress(clock, log)
		if err != nil {
			return nil, err
		}
		o.Egress = gateway.Egress
		g.Add(drain.Part{Name: "egress", Stop: func(context.Context) error { gateway.Close(); return nil }})
	}
	w := worker.New(o)
	if s.listen != "" {
		part, err := s.ingress(w)
		if err != nil {
			return nil, err
		}
		g.Add(part)
	}
	g.Add(drain.Part{Name: "worker", Stop: w.Close})
	var l net.Listener
	g.Add(drain.Part{
		Name:  "orders",
		Start: func(context.Context) (err error) { l, err = worker.Listen(s.orders); return err },
		Run:   func(ctx context.Context) error { return orders.Serve(ctx, l, w) },
	})
	return &g, nil
}

func (s *settings) egress(clock *conn.Clock, log *slog.Logger) (*worker.Gateway, error) {
	trust, err := mutual.OpenTrust(s.gatewayTrust)
	if err != nil {
		return nil, fmt.Errorf("--atunnel-egress-trust-bundle: %w", err)
	}
	return worker.NewGateway(worker.GatewayOptions{Address: s.gateway, Trust: trust, Mint: worker.Broker(s.broker), Clock: clock, Log: log})
}

// errStranger is a certificate that is good, and not the router's.
var errStranger = errors.New("not the router that may open tunnels")

func (s *settings) ingress(w *worker.Worker) (drain.Part, error) {
	own, err := mutual.OpenCredential(s.credential)
	if err != nil {
		return drain.Part{}, fmt.Errorf("--atunnel-credential-bundle: %w", err)
	}
	peers, err := mutual.OpenTrust(s.trust)
	if err != nil {
		return drain.Part{}, fmt.Errorf("--atunnel-trust-bundle: %w", err)
	}
	welcome := func(uri string) error {
		if uri != s.client {
			return fmt.Errorf("%.200q: %w", uri, errStranger)
		}
		return nil
	}
	in := worker.NewIngress(w, mutual.TLS{Own: own, Peers: peers, Check: welcome, Protocols: []string{"h2", "http/1.1"}}.Server())
	var l net.Listener
	return drain.Part{
		Name:  "ingress",
		Start: func(context.Context) (err error) { l, err = net.Listen("tcp", s.listen); return err },
		Run:   func(ctx context.Context) error { return in.Serve(ctx, l) },
	}, nil
}
