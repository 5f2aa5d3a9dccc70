package http2

import (
	"errors"

	"golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// extended reports whether :protocol asks for the extended CONNECT (RFC 8441 §4), which has a path and a scheme.
func (h *Head) extended() bool { return h.seen&hasProtocol != 0 }

// checkConnect wants of CONNECT an authority and nothing else (RFC 9113 §8.5), of extended CONNECT everything.
func (h *Head) checkConnect() {
	switch {
	case !h.extended():
		if h.seen != hasMethod|hasAuthority || h.authority == "" {
			h.Bad = "CONNECT with a scheme or a path, or without an authority"
		}
		h.path = h.authority
	case h.method != "CONNECT":
		h.Bad = ":protocol without CONNECT"
	case h.seen != hasMethod|hasAuthority|hasScheme|hasPath|hasProtocol || h.authority == "":
		h.Bad = "extended CONNECT without a scheme, a path or an authority"
	}
}

// plainConnect reports whether the request is a CONNECT without :protocol.
func (st *stream) plainConnect() bool {
	q := &st.x.Request
	return st.refused == nil && string(q.Method) == "CONNECT" && q.Upgrade == nil
}

// precheckConnect refuses CONNECT where it leads nowhere: plain CONNECT needs an entrypoint for it, extended CONNECT a
// protocol that a route can lead to.
func precheckConnect(r *exchange.Request, offered bool) *exchange.Error {
	switch {
	case r.Upgrade == nil && !offered:
		return exchange.Reject(501, exchange.CodeNotImplemented, "CONNECT is not supported here")
	case r.Upgrade != nil && (offered || string(r.Upgrade) != "websocket"):
		return exchange.Reject(501, exchange.CodeNotImplemented, "Protocol of extended CONNECT is not supported here")
	}
	return nil
}

// streamWindow is what a client may send on a stream that nobody reads.
func (s *Settings) streamWindow() int {
	if s.Connect {
		return tunnelWindow
	}
	return streamWindow
}

// Takeover gives the stream up as a connection, after a 2xx head to CONNECT, plain or extended. What the client has sent
// behind its request is read first. The handler must not return before both directions have ended; what it leaves open is
// reset.
func (st *stream) Takeover() (conn.Conn, error) {
	c, b := st.c, &st.body
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case st.tunnel != nil:
		return nil, errors.New("stream was taken over already")
	case !st.resp.tunnel || !st.headSent:
		return nil, errors.New("stream cannot be taken over without a 2xx to CONNECT")
	case b.begun:
		return nil, errors.New("stream cannot be taken over inside a request body")
	}
	return st.dig(tunnel{reset: func(code http2.ErrCode) { c.reset(st, code) }, end: st.end}), nil
}
