package proxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

// errNoTunnel answers a request that is no CONNECT, where only tunnels begin.
var errNoTunnel = exchange.Reject(405, exchange.CodeMethodNotAllowed, "CONNECT required")

// target reads where a CONNECT wants to get.
func target(x *exchange.Exchange) (exchange.Authority, error) {
	if string(x.Request.Method) != "CONNECT" || x.Request.Upgrade != nil {
		return exchange.Authority{}, errNoTunnel
	}
	to, err := exchange.ParseAuthority(x.Request.Target)
	if err != nil {
		e := exchange.Reject(400, exchange.CodeBadRequest, "Malformed request")
		e.Err = fmt.Errorf("target of CONNECT: %w", err)
		return to, e
	}
	return to, nil
}

// TunnelBackends leads CONNECTs to the backends of a service, whatever destination they ask for.
type TunnelBackends struct{ tcp *TCP }

// NewTunnelBackends returns the last handler of a route for CONNECT. The balancer's owner closes it.
func NewTunnelBackends(b *service.Balancer) *TunnelBackends { return &TunnelBackends{NewTCP(b)} }

// Serve connects to a backend, answers, and relays until both directions have ended.
func (t *TunnelBackends) Serve(x *exchange.Exchange) error {
	if _, err := target(x); err != nil {
		return err
	}
	s := &stream{attempts: attempts{backends: t.tcp.backends, policy: t.tcp.policy, x: x}}
	defer s.lease.Done(service.Unused) // after a panic
	if err := s.connect(); err != nil {
		return err
	}
	defer s.up.Release(false)
	down, err := x.AcceptTunnel()
	if err != nil {
		return err
	}
	defer func() { _ = down.Close() }()
	return s.pipe(down)
}

// TunnelDestinations leads CONNECTs to the destination that they ask for.
type TunnelDestinations struct{ to *service.Destinations }

// NewTunnelDestinations returns the last handler of a route for CONNECT.
func NewTunnelDestinations(d *service.Destinations) *TunnelDestinations {
	return &TunnelDestinations{d}
}

// Serve connects to the destination, answers, and relays until both directions have ended.
func (t *TunnelDestinations) Serve(x *exchange.Exchange) error {
	x.Record.Service = t.to.Name()
	to, err := target(x)
	if err != nil {
		return err
	}
	began := time.Now()
	up, err := t.to.Dial(x.Context(), to)
	a := exchange.Attempt{Backend: to.String(), Duration: time.Since(began)}
	if err != nil {
		e := dialFailed(x, err)
		a.Code = e.Code
		x.Record.AddAttempt(a)
		return e
	}
	x.Record.AddAttempt(a)
	defer func() { _ = up.Close() }()
	down, err := x.AcceptTunnel()
	if err != nil {
		return err
	}
	defer func() { _ = down.Close() }()
	p := pipe{x: x, down: down, up: up, bad: func(c exchange.Code, err error) *exchange.Error {
		return failure(502, c, "Bad gateway", fmt.Errorf("destination %s: %w", to, err))
	}}
	_, err = p.run()
	return err
}

func failure(status int, code exchange.Code, public string, err error) *exchange.Error {
	return &exchange.Error{Status: status, Code: code, Public: public, Outcome: exchange.OutcomeFailed, Err: err}
}

// dialFailed is the answer when a destination cannot be connected to.
func dialFailed(x *exchange.Exchange, err error) *exchange.Error {
	switch {
	case x.Gone():
		return departed(err)
	case errors.Is(err, context.Canceled): // only a departure and the drain deadline end the exchange's context
		return drained(err)
	case errors.Is(err, service.ErrDenied):
		e := exchange.Reject(403, exchange.CodeDestinationDenied, "Destination not allowed")
		e.Err = err
		return e
	case timedOut(err):
		e := failure(504, exchange.CodeConnectTimeout, "Upstream timeout", err)
		e.Limit = "connect.connect_timeout"
		return e
	case errors.Is(err, conn.ErrResolve):
		return failure(502, exchange.CodeDNSFailed, "Bad gateway", err)
	}
	return failure(502, exchange.CodeConnectFailed, "Bad gateway", err)
}

// Reentry serves what is inside a tunnel as a connection of an entrypoint of this process.
type Reentry struct {
	service, entrypoint string
	serve               func(entrypoint string, c conn.Conn) error
	purpose             func(x *exchange.Exchange) string
}

// NewReentry returns the last handler of a route for CONNECT. serve has the entrypoint serve a connection to its end; an
// error is that it does not.
func NewReentry(service, entrypoint string, serve func(entrypoint string, c conn.Conn) error) *Reentry {
	return &Reentry{service: service, entrypoint: entrypoint, serve: serve}
}

// WithPurpose has connections inside know what their tunnel was granted for.
func (r *Reentry) WithPurpose(of func(x *exchange.Exchange) string) *Reentry {
	r.purpose = of
	return r
}

// Serve answers, and returns when the connection inside has ended. It knows who has opened the tunnel, and for which
// destination.
func (r *Reentry) Serve(x *exchange.Exchange) error {
	x.Record.Service = r.service
	to, err := target(x)
	if err != nil {
		return err
	}
	outer, purpose := x.Conn, ""
	if r.purpose != nil {
		purpose = r.purpose(x)
	}
	down, err := x.AcceptTunnel()
	if err != nil {
		return err
	}
	inner := conn.NewInner(down, &conn.Info{
		Entrypoint: r.entrypoint, Local: outer.Local, Remote: outer.Remote, Via: outer.Via, Identity: outer.Identity,
		Outer: outer, Target: to.String(), For: purpose,
	})
	inner.Held(x.Guard, x.Gone(), func() { err = r.serve(r.entrypoint, inner) })
	x.Record.BytesIn, x.Record.BytesOut = inner.Moved()
	if err != nil {
		return failure(503, exchange.CodeBackendBusy, "Service unavailable", err)
	}
	return nil
}
