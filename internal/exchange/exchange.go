// Package exchange is one request, or one connection or session of datagrams, being served: what a protocol engine
// received, what handlers make of it, how it ended. An Exchange lives from the end of the request head to the last byte
// of the answer, or as long as the connection or session, belongs to one goroutine, and is reused afterwards; nothing may keep it or a view from it. The package knows no connection,
// descriptor, header map or net/http type: engines reach it through the Downstream interface.
package exchange

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// Handler serves an exchange. A middleware is a Handler built around its next. It may block on anything; what it
// waits on beyond memory should end when the client departs (Exchange.Departed, Exchange.Context). A returned
// error that carries no *Error becomes an internal error; see Exchange.Fail.
type Handler interface {
	Serve(x *Exchange) error
}

// Refuser is a Handler that also wants to see requests which its engine refuses before any handler could serve them:
// malformed heads, methods that are not supported. Refuse answers with the error and records it.
type Refuser interface {
	Refuse(x *Exchange, err *Error)
}

// Refuse lets a handler see a request that its engine refuses, so that it is recorded like every other.
func Refuse(h Handler, x *Exchange, err *Error) {
	if r, ok := h.(Refuser); ok {
		r.Refuse(x, err)
		return
	}
	x.Fail(err)
}

// HandlerFunc is a function as Handler.
type HandlerFunc func(x *Exchange) error

// Serve calls f.
func (f HandlerFunc) Serve(x *Exchange) error { return f(x) }

// HeadHook changes a response head before it is sent. Hooks run last registered first, once, also on answers that
// the gateway makes itself. A hook must not block.
type HeadHook interface {
	ResponseHead(x *Exchange)
}

// BodyFilter changes body bytes on their way. It appends what may go on to dst and returns it; it may hold bytes
// back until a later call. The call with last set comes exactly once, with the final bytes or none.
type BodyFilter interface {
	Filter(dst, chunk []byte, last bool) ([]byte, error)
}

// Watcher is told of moments of an exchange, each of which comes at most once. It must not block.
type Watcher interface {
	// FirstByte tells that the first response body byte is about to be sent; Record.FirstByteAt is set.
	FirstByte(x *Exchange)
	// Upgraded tells that the connection has switched protocols; Record.Upgraded is set.
	Upgraded(x *Exchange)
}

// Protocol is the HTTP version spoken with the client, or TCP for a connection whose bytes are not read as requests, or
// UDP for a session of datagrams.
type Protocol uint8

// Protocols.
const (
	HTTP11 Protocol = iota
	HTTP10
	HTTP2
	HTTP3
	TCP
	UDP
)

// String is the version as an access log prints it.
func (p Protocol) String() string {
	return [...]string{"HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/3.0", "TCP", "UDP"}[p]
}

// Streams reports whether it is not one of requests: there is no status then.
func (p Protocol) Streams() bool { return p == TCP || p == UDP }

// Request is the request head. All byte slices are views, valid until the exchange ends; nil means absent.
type Request struct {
	Protocol Protocol
	Method   []byte
	Target   []byte // origin form as received: path and query; "*" for OPTIONS *
	Path     []byte // Target without its query
	Query    []byte // without the question mark; nil when there is none
	Normal   []byte // normal form of Path, what rules match; set before routing
	Host     []byte // authority, from Host, :authority or an absolute target; of a connection the server name asked for
	TLS      bool
	Fields   Fields
	// ContentLength of the body; 0 none, -1 unknown until its end.
	ContentLength int64
	// Expect is set when the client waits for 100 (Continue) before it sends the body.
	Expect bool
	// Upgrade is "websocket" as the client spells it, when it asks for that; nil otherwise. That the rest of the request
	// goes with it is not said: who acts on it judges that.
	Upgrade []byte
	// Rewritten is set by handlers that changed Path or Query: the rewritten form is then sent, not Target.
	Rewritten bool
	// Trailers are the fields after the body, complete once ReadBody has returned io.EOF.
	Trailers Fields
}

// Response is the response head to be sent.
type Response struct {
	Status int
	Fields Fields // without framing and connection fields: the engine makes those
	// ContentLength of the body; -1 unknown, which the engine frames as the protocol allows.
	ContentLength int64
	// Trailers are sent after the body, if the protocol can.
	Trailers Fields
	// Upgrade is set on a 101, to the protocol switched to, and on a 426, to the one that is required.
	Upgrade []byte
	// Close asks the engine to end the connection after this exchange, where connections are reused.
	Close bool
}

// Downstream is the client's end of an exchange, implemented by each protocol engine. Methods are called from the
// exchange's goroutine, except that one other goroutine may call ReadBody and ReleaseBody while bodies move both ways.
type Downstream interface {
	// ReadBody returns the next request body bytes, waiting for some; io.EOF after the last. The bytes are valid
	// until ReleaseBody or the next ReadBody. Asks the client to go on (100) if it waits for that.
	ReadBody() ([]byte, error)
	// ReleaseBody tells that the bytes last returned are used up, and returns their flow-control credit.
	ReleaseBody()
	// Buffered returns body bytes that have already arrived, and whether they are all of it. It does not wait.
	// The bytes stay valid until ReadBody is called or the exchange ends.
	Buffered() (body []byte, complete bool)
	// Interim sends a 1xx head other than 101.
	Interim(status int, f *Fields) error
	// SendHead sends the final head with the first body bytes; last ends the body. Blocks for back-pressure.
	SendHead(x *Exchange, body []byte, last bool) error
	// SendBody sends body bytes; last ends the body, followed by x.Response.Trailers. Blocks for back-pressure.
	SendBody(x *Exchange, body []byte, last bool) error
	// Abort ends the exchange without a proper end of its body: the connection is closed, or the stream reset.
	Abort()
	// Takeover gives up the connection after SendHead of a 101 (or a 2xx to CONNECT). The caller owns it then.
	Takeover() (conn.Conn, error)
	// InterruptBody makes a pending and every later ReadBody fail at once, from any goroutine.
	InterruptBody()
}

// RawRun is a stretch of a chunked HTTP/1.1 body with its framing, as it may be passed on unchanged.
type RawRun struct {
	Bytes   []byte
	Payload int  // body bytes among them
	Last    bool // the message has ended; Bytes reach to the last chunk's size line
	Closed  bool // with Last: they also hold the closing empty line; nothing is left to send
}

// RawBody is an optional capability of a Downstream that can pass on HTTP/1.1 chunks as they are.
type RawBody interface {
	// CanSendRaw tells so for this response, whose head is not sent yet and whose length is unknown.
	CanSendRaw(x *Exchange) bool
	// SendRaw sends the head, if it was not yet, and the run; after the last run x.Response.Trailers.
	SendRaw(x *Exchange, r RawRun, head bool) error
}

// maxHooks bounds response-head hooks of one exchange: more than any chain that fits a configuration needs.
const maxHooks = 64

// Exchange is one request being served. Field groups have one writer each: Request and peer data the engine, route
// data the snapshot, attempts and bytes the proxy; everybody reads.
type Exchange struct {
	Request  Request
	Response Response
	Record   Record

	// Down is the client's end; nil for a connection, which its handler is given.
	Down Downstream
	// Guard interrupts what the exchange waits on. The engine owns it and registers it with the clock.
	Guard *conn.Alarm
	// Conn describes the connection that the request came on.
	Conn *conn.Info
	// Terminate ends TLS on a connection with the certificate of its entrypoint, once; nil: the entrypoint has none. A nil
	// conn without an error is one that the handshake was all of.
	Terminate func(c conn.Conn) (conn.Conn, error)
	// TLSRequested is set when the client of a connection has asked for TLS as PostgreSQL's do, and was answered: the
	// backend must be asked, too. See [conn.AnswerTLSRequest].
	TLSRequested bool
	// Pace bounds a connection that moves nothing; its Guard is left nil.
	Pace conn.Pace
	// Trusted is set when the peer is a proxy whose forwarding fields are believed.
	Trusted bool
	// Direct is set when the request goes on as its client's own: nothing is added that tells of the client, or of the
	// request's id, and nothing of that kind is taken away.
	Direct bool
	// Origin forwards a request of an actor to where it was allowed to go, and nowhere else, for the route that leads
	// there; nil: the request is none of an actor that leaves.
	Origin Handler
	// PlainErrors has errors answered with their text alone, as text/plain, where that is what clients know.
	PlainErrors bool
	// Watch is told of the exchange's moments; nil: nobody. It belongs to what measures the exchange.
	Watch Watcher

	hooks     []HeadHook
	filters   []BodyFilter
	headSent  bool
	callBegun bool // that head began the answer to a gRPC call
	ended     bool
	expectFwd bool

	idBuf    [128]byte // what Record.RequestID views
	traceBuf [32]byte  // what Record.TraceID views

	departed   atomic.Bool
	forced     atomic.Bool
	mu         sync.Mutex // guards the fields below
	gone       chan struct{}
	goneClosed bool
	cancel     context.CancelCauseFunc
	ctx        context.Context
	expires    time.Time          // zero: never
	unbind     context.CancelFunc // of what ends ctx then; nil nothing does yet
}

// ErrDeparted is the cause of everything that ends because the client went away.
var ErrDeparted = errors.New("client departed")

// ErrForced is the cause of what ends because the drain deadline passed.
var ErrForced = errors.New("drain deadline passed")

// ErrExpired is the cause of what ends because the deadline has passed that the client has set itself.
var ErrExpired = fmt.Errorf("the client's deadline has passed: %w", context.DeadlineExceeded)

// Begin prepares a (re)used exchange for a new request.
func (x *Exchange) Begin(down Downstream, guard *conn.Alarm, info *conn.Info, now time.Time) {
	x.Down, x.Guard, x.Conn = down, guard, info
	x.Response.Status, x.Response.ContentLength, x.Response.Upgrade, x.Response.Close = 0, -1, nil, false
	x.Response.Fields.Reset(nil)
	x.Response.Trailers.Reset(nil)
	x.Request.Trailers.Reset(nil)
	x.Request.Normal, x.Request.Rewritten = nil, false
	x.hooks, x.filters, x.Watch = x.hooks[:0], x.filters[:0], nil
	x.headSent, x.callBegun, x.ended, x.expectFwd = false, false, false, false
	x.Trusted, x.Direct, x.PlainErrors, x.Origin = false, false, false, nil
	x.departed.Store(false)
	x.forced.Store(false)
	x.gone, x.goneClosed, x.cancel, x.ctx = nil, false, nil, nil
	x.expires, x.unbind = time.Time{}, nil
	x.Record.begin(now)
	x.Record.Peer = info.Remote
	x.Record.ClientIP = info.Remote.Addr().Unmap()
	x.Record.ClientIdentity = info.Identity
}

// OnHead registers a response-head hook.
func (x *Exchange) OnHead(h HeadHook) {
	if len(x.hooks) < maxHooks {
		x.hooks = append(x.hooks, h)
	}
}

// FilterResponse registers a filter for the response body; the last registered sees the bytes first. Must be
// called before the head is sent. The length of the body becomes unknown.
func (x *Exchange) FilterResponse(f BodyFilter) { x.filters = append(x.filters, f) }

// Filtered reports whether a response body filter is registered: bytes may then not be passed on verbatim.
func (x *Exchange) Filtered() bool { return len(x.filters) > 0 }

// HeadSent reports whether the final response head has been sent: the commit point, after which an error can only
// end the stream.
func (x *Exchange) HeadSent() bool { return x.headSent }

// Interim passes on a 1xx response. After the head it does nothing.
func (x *Exchange) Interim(status int, f *Fields) error {
	if x.headSent {
		return nil
	}
	return x.Down.Interim(status, f)
}

// prepareHead runs the head hooks and marks the head as sent.
func (x *Exchange) prepareHead() {
	for i := len(x.hooks) - 1; i >= 0; i-- {
		x.hooks[i].ResponseHead(x)
	}
	x.headSent, x.callBegun = true, x.Request.GRPC() && ofGRPC(&x.Response.Fields)
	x.Record.Status = x.Response.Status
	x.Record.HeadAt = time.Since(x.Record.Start)
}

// Send sends response bytes, the head before the first. With last the response is complete. body may be nil.
func (x *Exchange) Send(body []byte, last bool) error {
	if len(x.filters) > 0 {
		var err error
		if body, err = x.filter(body, last); err != nil {
			return err
		}
		if x.headSent && len(body) == 0 && !last {
			return nil
		}
	}
	if !x.headSent {
		x.prepareHead()
		x.count(len(body), true)
		return x.Down.SendHead(x, body, last)
	}
	x.count(len(body), false)
	return x.Down.SendBody(x, body, last)
}

// SendRaw is Send for chunked bytes whose framing stays. to comes from Raw.
func (x *Exchange) SendRaw(to RawBody, r RawRun) error {
	head := !x.headSent
	if head {
		x.prepareHead()
	}
	x.count(r.Payload, head)
	return to.SendRaw(x, r, head)
}

// Raw returns the client's end if it can take chunked bytes verbatim and no filter wants to see them.
func (x *Exchange) Raw() (RawBody, bool) {
	if len(x.filters) > 0 {
		return nil, false
	}
	r, ok := x.Down.(RawBody)
	if !ok || !r.CanSendRaw(x) {
		return nil, false
	}
	return r, true
}

// count adds n response body bytes; first tells that the head goes out with them.
func (x *Exchange) count(n int, first bool) {
	if n > 0 && string(x.Request.Method) != "HEAD" { // an error's text is handed over all the same
		if x.Record.BytesOut == 0 {
			if x.Record.FirstByteAt = x.Record.HeadAt; !first {
				x.Record.FirstByteAt = time.Since(x.Record.Start)
			}
			if x.Watch != nil {
				x.Watch.FirstByte(x)
			}
		}
		x.Record.BytesOut += int64(n)
	}
}

// filter runs body bytes through the filters, last registered first.
func (x *Exchange) filter(body []byte, last bool) ([]byte, error) {
	if !x.headSent {
		x.Response.ContentLength = -1
	}
	for i := len(x.filters) - 1; i >= 0; i-- {
		out, err := x.filters[i].Filter(nil, body, last)
		if err != nil {
			return nil, err
		}
		body = out
	}
	return body, nil
}

// ForwardExpect is called by a handler that passes the client's expectation on: the engine then no longer sends
// 100 (Continue) by itself when the body is read.
func (x *Exchange) ForwardExpect() { x.expectFwd = true }

// ExpectForwarded reports whether ForwardExpect was called.
func (x *Exchange) ExpectForwarded() bool { return x.expectFwd }

// Depart tells that the client went away. Engines call it from any goroutine, at most once an exchange has an effect.
func (x *Exchange) Depart() {
	if x.departed.Swap(true) {
		return
	}
	x.release(ErrDeparted)
	x.Guard.Ring(conn.CauseDeparted)
}

// Force ends everything that the exchange waits on although its client is there: the drain deadline has passed.
// Engines call it from any goroutine, as often as they like.
func (x *Exchange) Force() {
	if !x.forced.Swap(true) {
		x.release(ErrForced)
	}
	x.Guard.Ring(conn.CauseDrain)
}

// release lets go who waits for the client's departure.
func (x *Exchange) release(cause error) {
	x.mu.Lock()
	if x.gone != nil && !x.goneClosed {
		close(x.gone)
		x.goneClosed = true
	}
	cancel := x.cancel
	x.mu.Unlock()
	if cancel != nil {
		cancel(cause)
	}
}

// over reports whether nothing of the exchange is wanted any more, and why.
func (x *Exchange) over() error {
	switch {
	case x.departed.Load():
		return ErrDeparted
	case x.forced.Load():
		return ErrForced
	}
	return nil
}

// Gone reports whether the client went away.
func (x *Exchange) Gone() bool { return x.departed.Load() }

// Departed returns a channel that is closed when the client goes away, or the exchange is forced to end.
func (x *Exchange) Departed() <-chan struct{} {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.gone == nil {
		x.gone = make(chan struct{})
		if x.goneClosed = x.over() != nil; x.goneClosed {
			close(x.gone)
		}
	}
	return x.gone
}

// Expire has contexts that Context returns from now on end with ErrExpired at a time; a later call has no effect.
func (x *Exchange) Expire(at time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.expires.IsZero() {
		x.expires = at
	}
}

// Context returns a context that ends when the client goes away or the exchange ends, or as Expire says.
func (x *Exchange) Context() context.Context {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ctx == nil {
		x.ctx, x.cancel = context.WithCancelCause(context.Background())
		if err := x.over(); err != nil {
			x.cancel(err)
		}
	}
	if !x.expires.IsZero() && x.unbind == nil {
		x.ctx, x.unbind = context.WithDeadlineCause(x.ctx, x.expires, ErrExpired)
	}
	return x.ctx
}

// SetClient records who the client is, after forwarding headers were judged.
func (x *Exchange) SetClient(ip netip.Addr) { x.Record.ClientIP = ip }

// SetRequestID records the request's id, at most 128 bytes. The record's string is a view that ends with the exchange.
func (x *Exchange) SetRequestID(id []byte) {
	n := copy(x.idBuf[:], id)
	x.Record.RequestID = unsafe.String(&x.idBuf[0], n)
}

// SetTraceID records the id of the trace that the request belongs to, 32 bytes, in the same way.
func (x *Exchange) SetTraceID(id []byte) {
	n := copy(x.traceBuf[:], id)
	x.Record.TraceID = unsafe.String(&x.traceBuf[0], n)
}

// End closes the record; it has an effect once. The caller hands the record on.
func (x *Exchange) End(o Outcome) bool {
	if x.ended {
		return false
	}
	x.ended = true
	if x.Record.Outcome == OutcomeNone {
		x.Record.Outcome = o
	}
	x.Record.Duration = time.Since(x.Record.Start)
	x.mu.Lock()
	cancel, unbind := x.cancel, x.unbind
	x.mu.Unlock()
	if cancel != nil {
		cancel(context.Canceled)
	}
	if unbind != nil {
		unbind()
	}
	return true
}
