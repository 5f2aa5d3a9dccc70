package websocket

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	wslib "github.com/coder/websocket"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Multiplexer serves the WebSocket sessions of one service with the named channels of a Hub, without a backend. Other
// requests go to the next handler. It lives as long as its generation.
type Multiplexer struct {
	hub     *Hub
	service string
	bounds  Bounds
	next    exchange.Handler
}

// NewMultiplexer returns the handler of a service.
func NewMultiplexer(h *Hub, service string, b Bounds, next exchange.Handler) *Multiplexer {
	return &Multiplexer{hub: h, service: service, bounds: b, next: next}
}

// writeTimeout bounds how long a client may take none of a message that is being sent to it.
const writeTimeout = 10 * time.Second

// Serve answers the handshake and serves the session to its end.
func (m *Multiplexer) Serve(x *exchange.Exchange) error {
	if x.Request.Upgrade == nil {
		return m.next.Serve(x)
	}
	x.Record.Service = m.service
	origin, origins := only(&x.Request.Fields, "origin") // as the client says it: Check drops what Connection names
	key, err := Check(x)
	if err != nil {
		return err
	}
	if origins > 1 || origins == 1 && len(origin) == 0 {
		return foreign(errors.New("more than one Origin, or an empty one"))
	}
	l := &leg{x: x, idle: m.bounds.Idle}
	since := time.Now() // not behind the start of the lifetime
	x.Guard.ArmWithin(l, m.bounds.Idle, m.bounds.Lifetime)
	defer x.Guard.Disarm()
	ws, err := l.accept(key, origin)
	if err != nil {
		return err
	}
	x.Upgraded()
	code, fault := m.session(ws, l)
	cause := x.Guard.Disarm()
	if Ours(cause) {
		code = GoingAway
	}
	x.Record.BytesIn += l.in.Load()
	x.Record.BytesOut += l.out.Load()
	m.bounds.Record(&x.Record, cause, time.Since(since))
	switch {
	case code != 0 && l.sent.Between():
		Dismiss(l.Conn, code)
	case fault && l.sent.ended(): // the library has told the client
		linger(l.Conn)
	}
	_ = l.Conn.Close()
	return nil
}

// session reads what the client says, while another goroutine sends what others say, until either cannot. It returns the
// code that the client is still to be told, 0 none, and whether it ended otherwise than by the client's close frame.
func (m *Multiplexer) session(ws *wslib.Conn, l *leg) (code uint16, fault bool) {
	ws.SetReadLimit(maxMessage)
	c := m.hub.join(m.service)
	over := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() { c.send(ws, over) })
	code, fault = c.receive(ws)
	c.leave()
	close(over)
	l.Interrupt() // a message that is being sent to who takes none
	sending.Wait()
	_ = ws.CloseNow()
	return code, fault
}

// receive carries out messages until the session ends, and returns what session does. The reply comes before the next
// message is read.
func (c *client) receive(ws *wslib.Conn) (code uint16, fault bool) {
	for {
		kind, message, err := ws.Read(context.Background())
		if err != nil {
			return 0, wslib.CloseStatus(err) == -1
		}
		reply := "_error:invalid message format"
		if kind == wslib.MessageText {
			if !utf8.Valid(message) { // passed on it would end the sessions of others
				return notText, true
			}
			reply = c.command(message)
		}
		if reply != "" && write(ws, []byte(reply)) != nil {
			return 0, true
		}
	}
}

// send sends what is put into the queue.
func (c *client) send(ws *wslib.Conn, over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case message := <-c.queue:
			err := write(ws, message)
			c.took(message)
			if err != nil { // the session is closed, which ends receive, too
				return
			}
		}
	}
}

func write(ws *wslib.Conn, message []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), writeTimeout)
	defer cancel()
	return ws.Write(ctx, wslib.MessageText, message)
}

// leg is the client's end of a session, as the library sees it: the answer to the handshake, then the connection, which
// the library cannot close, since something may be left to say.
type leg struct {
	conn.Conn // after Hijack
	x         *exchange.Exchange
	header    http.Header
	status    int
	err       error
	taken     atomic.Bool

	idle    time.Duration // bound that each byte restarts
	in, out atomic.Int64
	sent    Frames // under the library's lock of writes
}

// accept answers the handshake. The library is told of it as if it had come over HTTP/1.1. Browsers are accepted only from
// pages of the same host: the gateway is the server here, and nobody behind it could look at Origin.
func (l *leg) accept(key, origin []byte) (*wslib.Conn, error) {
	r := &l.x.Request
	if key == nil {
		key = AppendKey(nil)
	}
	l.header = make(http.Header)
	req := &http.Request{
		Method: http.MethodGet, ProtoMajor: 1, ProtoMinor: 1, Host: string(r.Host),
		Header: http.Header{
			"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {Version}, "Sec-Websocket-Key": {string(key)},
		},
	}
	if origin != nil {
		req.Header.Set("Origin", string(origin))
	}
	ws, err := wslib.Accept(l, req, &wslib.AcceptOptions{CompressionMode: wslib.CompressionDisabled})
	switch {
	case err == nil:
		return ws, nil
	case l.err != nil:
		return nil, l.err
	case l.status == http.StatusForbidden:
		return nil, foreign(err)
	}
	return nil, err
}

// foreign is the refusal of a page of another host.
func foreign(err error) error {
	e := exchange.Reject(403, exchange.CodeOrigin, "Origin not allowed")
	e.Err = err
	return e
}

// Header is the fields of the answer.
func (l *leg) Header() http.Header { return l.header }

// Write is for both lives: the body of a refusal, which is ours to make, and the bytes of the session.
func (l *leg) Write(p []byte) (int, error) {
	if !l.taken.Load() {
		return len(p), nil
	}
	n, err := l.Conn.Write(p)
	l.sent.Feed(p[:n])
	l.out.Add(int64(n))
	l.moved(n)
	return n, err
}

// WriteHeader sends the head if the handshake is accepted.
func (l *leg) WriteHeader(status int) {
	l.status = status
	if status != http.StatusSwitchingProtocols {
		return
	}
	r := &l.x.Response
	r.Status, r.Upgrade = status, []byte("websocket")
	if l.x.Request.Protocol == exchange.HTTP2 {
		r.Status, r.Upgrade = http.StatusOK, nil
	} else {
		r.Fields.Add("Sec-WebSocket-Accept", l.header.Get("Sec-WebSocket-Accept"))
	}
	l.err = l.x.Send(nil, r.Status == http.StatusSwitchingProtocols)
}

// Hijack takes the connection over. The library reads and writes through small buffers.
func (l *leg) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if l.err != nil {
		return nil, nil, l.err
	}
	down, err := l.x.Down.Takeover()
	if err != nil {
		l.err = err
		return nil, nil, err
	}
	l.Conn = down
	l.taken.Store(true)
	if l.x.Guard.Cause() != conn.CauseNone { // it rang when there was nothing to interrupt
		l.Interrupt()
	}
	return l, bufio.NewReadWriter(bufio.NewReaderSize(l, legBuffer), bufio.NewWriterSize(l, legBuffer)), nil
}

// legBuffer is small: messages are, and most sessions are idle.
const legBuffer = 1 << 10

// Read reads bytes of the session.
func (l *leg) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	l.in.Add(int64(n))
	l.moved(n)
	return n, err
}

// moved restarts the idle bound.
func (l *leg) moved(n int) {
	if n > 0 {
		l.x.Guard.Extend(l.idle)
	}
}

// Close is the library's: it ends what waits.
func (l *leg) Close() error {
	l.Interrupt()
	return nil
}

// Interrupt makes waits fail.
func (l *leg) Interrupt() {
	if l.taken.Load() {
		conn.InterrupterOf(l.Conn).Interrupt()
	}
}
