package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"os"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

// Bounds of how a tunnel begins.
const (
	firstBytes    = time.Second // until it has told what it carries
	handshakeTime = 10 * time.Second
)

// serve finds out what the tunnel carries, and serves that to its end.
func (t *tunnel) serve(x *exchange.Exchange, inner *conn.Inner) {
	hello, c, err := conn.PeekHello(inner, conn.MaxHello, firstBytes)
	switch {
	case err == nil:
		t.secured(x, c, hello)
	case errors.Is(err, conn.ErrNotTLS):
		t.requests(c, LegCleartext, Host{})
	default:
		r := t.record(LegUnknown)
		v := refuse(0, HelloInvalid, err.Error())
		switch in, _ := inner.Moved(); {
		case t.why() != "":
			v.Reason = t.why()
		case errors.Is(err, os.ErrDeadlineExceeded):
			v.Reason = FirstBytesLate
		case in == 0 && errors.Is(err, io.EOF):
			v.Reason = NothingSent
		}
		r.decided(v)
		t.actor.g.note(r)
	}
}

// record begins a line of the audit log.
func (t *tunnel) record(leg Leg) *Record {
	n := t.actor
	return &Record{
		Time: time.Now(), ID: newID(), Leg: leg, Atespace: n.ref.Atespace, Actor: n.ref.Name, UID: n.uid, Worker: t.worker, Dialed: t.dialed.String(),
	}
}

// secured serves a connection that begins with a ClientHello.
func (t *tunnel) secured(x *exchange.Exchange, c conn.Conn, hello conn.Hello) {
	g := t.actor.g
	s := t.actor.standing(x.Context())
	mode, v := ModeClose, AdmitPolicy(s)
	if v.OK() {
		mode, v = JudgeTLS(s.Rules, Handshake{ServerName: hello.ServerName, Hidden: hello.ECH, Port: t.dialed.Port()})
	}
	leg := map[Mode]Leg{ModeClose: LegUnknown, ModeIntercept: LegIntercepted, ModePassthrough: LegPassthrough}[mode]
	r := t.record(leg)
	r.SNI, r.PolicyVersion = clip(hello.ServerName), s.Version
	r.decided(v)
	switch mode {
	case ModeIntercept:
		t.becomes(leg, v, s.Version)
		t.intercept(x.Context(), c, v, r)
	case ModePassthrough:
		t.becomes(leg, v, s.Version)
		t.pass(x, c, r, v.Host)
	default:
		r.Status = 0
		g.note(r)
	}
}

// intercept opens TLS with a certificate that is minted for the name, and serves the requests inside. That is noted only when
// it fails: otherwise each request is.
func (t *tunnel) intercept(ctx context.Context, c conn.Conn, v Verdict, r *Record) {
	g := t.actor.g
	fail := func(reason Reason, err error) {
		if why := t.why(); why != "" {
			reason = why
		}
		v.Reason, v.Detail = reason, err.Error()
		r.decided(v)
		g.note(r)
	}
	if g.o.Minter == nil {
		fail(MintFailed, errors.New("there is no minter_socket"))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	leaf, err := t.actor.leaves.get(ctx, v.Host)
	if errors.Is(err, errLeaves) {
		fail(LimitLeaves, err)
		return
	}
	if err != nil {
		fail(MintFailed, err)
		return
	}
	s := tls.Server(c, &tls.Config{
		Certificates: []tls.Certificate{*leaf}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, SessionTicketsDisabled: true,
	})
	if err := s.HandshakeContext(ctx); err != nil {
		fail(HandshakeFailed, err)
		return
	}
	state := s.ConnectionState()
	info := *c.Info()
	info.TLS = &state
	t.requests(conn.NewPlain(s, info), LegIntercepted, v.Host)
}

// pass connects to the name that was asked for and moves bytes, the ClientHello first.
func (t *tunnel) pass(x *exchange.Exchange, c conn.Conn, r *Record, name Host) {
	g := t.actor.g
	defer g.note(r)
	o := &origin{}
	up, err := t.actor.origins.dial(x.Context(), name, t.dialed.Port(), &o.last)
	if err != nil {
		r.blame(err)
		return
	}
	defer func() { _ = up.Close() }()
	r.Upstream = o.upstream()
	if !t.joins(up) { // ended while it was being dialed: what has been read before is not sent any more
		r.Code = string(t.why())
		return
	}
	pace := x.Pace
	pace.Guard = x.Guard
	moved, _ := conn.Join(c, up, pace, x.Gone())
	r.BytesUp, r.BytesDown = moved.AtoB, moved.BtoA
	r.Code = string(t.why())
}

// blame notes why something that was allowed was not reached. What rules of addresses and limits say is a refusal.
func (r *Record) blame(err error) {
	r.Detail = clip(err.Error())
	switch {
	case errors.Is(err, service.ErrDenied):
		r.Verdict, r.Reason, r.Status = "deny", AddressDenied, 403
	case errors.Is(err, errDials):
		r.Verdict, r.Reason, r.Status = "deny", LimitDials, 503
	case errors.Is(err, errOrigins):
		r.Verdict, r.Reason, r.Status = "deny", LimitOrigins, 503
	case errors.Is(err, conn.ErrResolve):
		r.Code = string(exchange.CodeDNSFailed)
	case errors.Is(err, conn.ErrTLS):
		r.Code = string(exchange.CodeTLSFailed)
	default:
		r.Code = string(exchange.CodeConnectFailed)
	}
}
