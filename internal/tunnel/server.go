package tunnel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// Ask is a request for a tunnel, while it is decided about.
type Ask struct {
	// Authority is host:port as it came. It may be malformed: exchange.ParseAuthority tells.
	Authority string
	// Conn describes the connection that the request came on, with the peer's verified identity.
	Conn   *conn.Info
	fields *exchange.Fields
}

// Values are those of every field of a name, in any case, in their order.
func (a *Ask) Values(name string) []string {
	var all []string
	for v := range a.fields.Values(strings.ToLower(name)) {
		all = append(all, string(v))
	}
	return all
}

// Accepted says what becomes of a tunnel: one of the two is set.
type Accepted struct {
	// To is what the tunnel is relayed to. The server closes it.
	To conn.Conn
	// Serve serves the tunnel to its end.
	Serve func(c conn.Conn)
}

// ServerConfig says how tunnels are accepted.
type ServerConfig struct {
	// Accept decides about a tunnel and connects it, before anything is answered; bytes that the peer has sent already are
	// kept meanwhile. ctx ends when the peer gives the request up. An error is answered: a *Refusal as it says, everything
	// else with 502.
	Accept func(ctx context.Context, a *Ask) (Accepted, error)
	// Idle and HalfClosed bound tunnels that are relayed and move nothing, as conn.Pace does; 0 is no bound.
	Idle, HalfClosed time.Duration
	// HeaderTimeout is for the head of a request; 0 is 10 s.
	HeaderTimeout time.Duration
	// KeepAlive is for a connection without tunnels; 0 is none.
	KeepAlive time.Duration
	// Streams bounds the tunnels of one connection; 0 is 1024.
	Streams int
	// Ended gets the record of each request and tunnel, refused ones too; nil: nobody. It must not block.
	Ended func(x *exchange.Exchange)
}

// Bounds of a request for a tunnel.
const (
	maxHeadBytes = 16 << 10
	maxFields    = 64
	writeIdle    = time.Minute
)

// Server accepts tunnels. Its connections are members of the tracker that they are served with; a forced one ends its tunnels.
type Server struct {
	cfg ServerConfig
	h1  *http1.Server
	h2  *http2.Server
}

// NewServer makes a server.
func NewServer(cfg ServerConfig, clock *conn.Clock) *Server {
	s := &Server{cfg: cfg}
	header, h := or(cfg.HeaderTimeout, 10*time.Second), handler{s}
	s.h2 = http2.NewServer(&http2.Settings{
		Handler: h, Connect: true, HeaderTimeout: header, WriteIdleTimeout: writeIdle, KeepAliveTimeout: cfg.KeepAlive,
		MaxHeaderBytes: maxHeadBytes, MaxHeaders: maxFields, MaxStreams: or(cfg.Streams, 1024),
	}, clock)
	s.h1 = http1.NewServer(&http1.Settings{
		Limits: http1.Limits{MaxHeaderBytes: maxHeadBytes, MaxHeaders: maxFields}, Handler: h, Connect: true,
		HeaderTimeout: header, WriteIdleTimeout: writeIdle, KeepAliveTimeout: cfg.KeepAlive,
	}, clock, s.h2.ServeConnWith)
	return s
}

// ServeHTTP1 serves a connection that has negotiated HTTP/1.1, or nothing, to its end and closes it.
func (s *Server) ServeHTTP1(c conn.Conn, live *drain.Tracker) { s.h1.ServeConn(c, live) }

// ServeHTTP2 serves a connection that has negotiated HTTP/2 to its end and closes it.
func (s *Server) ServeHTTP2(c conn.Conn, live *drain.Tracker) { s.h2.ServeConn(c, live) }

// handler is the server as its engines see it.
type handler struct{ s *Server }

// Serve decides about a request and serves its tunnel.
func (h handler) Serve(x *exchange.Exchange) error {
	ask := &Ask{Authority: string(x.Request.Target), Conn: x.Conn, fields: &x.Request.Fields}
	got, err := h.s.cfg.Accept(x.Context(), ask)
	if err == nil && got.To == nil && got.Serve == nil {
		err = errors.New("accepted, but led nowhere")
	}
	if err == nil {
		err = h.s.serve(x, got)
	} else {
		h.s.refuse(x, err)
	}
	if err != nil && x.HeadSent() {
		x.Record.Err = err
	}
	h.s.end(x)
	return nil
}

// serve answers and serves the tunnel.
func (s *Server) serve(x *exchange.Exchange, got Accepted) error {
	if got.To != nil {
		defer func() { _ = got.To.Close() }()
	}
	x.Response.Status, x.Response.ContentLength = 200, -1
	if err := x.Send(nil, true); err != nil {
		return err
	}
	down, err := x.Down.Takeover()
	if err != nil {
		return err
	}
	x.Record.Outcome = exchange.OutcomeUpgraded
	if got.To == nil {
		inner := conn.NewInner(down, inside(x))
		inner.Held(x.Guard, x.Gone(), func() { got.Serve(inner) })
		x.Record.BytesIn, x.Record.BytesOut = inner.Moved()
		return inner.Close()
	}
	defer func() { _ = down.Close() }()
	done, cause := conn.Join(down, got.To, conn.Pace{Guard: x.Guard, Idle: s.cfg.Idle, HalfClosed: s.cfg.HalfClosed}, x.Gone())
	x.Record.BytesIn, x.Record.BytesOut = done.AtoB, done.BtoA
	switch {
	case done.Err == nil:
	case cause == conn.CauseDrain:
		x.Record.Outcome = exchange.OutcomeDrained
	case cause == conn.CauseDeadline:
		x.Record.Outcome = exchange.OutcomeTimeout
	case cause == conn.CauseDeparted, done.AFailed:
		x.Record.Outcome = exchange.OutcomeDisconnected
	default:
		x.Record.Outcome = exchange.OutcomeAborted
	}
	return done.Err
}

// inside describes the connection that a tunnel is.
func inside(x *exchange.Exchange) *conn.Info {
	o := x.Conn
	return &conn.Info{
		Entrypoint: o.Entrypoint, Local: o.Local, Remote: o.Remote, Via: o.Via, Identity: o.Identity, Outer: o, Target: string(x.Request.Target),
	}
}

// Refuse answers what the engine refuses.
func (h handler) Refuse(x *exchange.Exchange, e *exchange.Error) {
	x.Response.Close = e.Close
	h.s.refuse(x, &Refusal{Status: e.Status, Body: e.Public})
	x.Record.Err = e
	h.s.end(x)
}

// refuse answers with an error, in plain text. What only we should know stays out.
func (s *Server) refuse(x *exchange.Exchange, err error) {
	x.Record.Err, x.Record.Outcome = err, exchange.OutcomeRejected
	if x.Gone() {
		x.Record.Outcome = exchange.OutcomeDisconnected
		x.Down.Abort()
		return
	}
	var r *Refusal
	if !errors.As(err, &r) || r.Status < 300 || r.Status > 599 {
		x.Record.Outcome = exchange.OutcomeFailed
		r = &Refusal{Status: 502, Body: "bad gateway"}
	}
	f := &x.Response.Fields
	f.Reset(nil)
	for _, field := range r.Fields {
		if exchange.ValidName(field.Name) && exchange.ValidValue(field.Value) {
			f.Add(field.Name, field.Value)
		}
	}
	if !slices.ContainsFunc(r.Fields, func(f Field) bool { return exchange.EqualFold([]byte(f.Name), "content-type") }) && r.Body != "" {
		f.Add("Content-Type", "text/plain; charset=utf-8")
	}
	x.Response.Status, x.Response.ContentLength = r.Status, int64(len(r.Body))
	if serr := x.Send([]byte(r.Body), true); serr != nil {
		x.Record.Outcome, x.Record.Err = exchange.OutcomeDisconnected, fmt.Errorf("%w, answering %w", serr, err)
	}
}

// end closes the record.
func (s *Server) end(x *exchange.Exchange) {
	if x.End(exchange.OutcomeOK) && s.cfg.Ended != nil {
		s.cfg.Ended(x)
	}
}
