package proxy

import (
	"bytes"
	"net/netip"
	"strconv"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// made are the fields that the request head gets from here rather than from the client.
var made = exchange.SetOf(
	exchange.FieldHost, exchange.FieldConnection, exchange.FieldContentLength, exchange.FieldTransferEncoding, exchange.FieldTE,
	exchange.FieldTrailer, exchange.FieldUpgrade, exchange.FieldKeepAlive, exchange.FieldProxyConnection,
	exchange.FieldProxyAuthenticate, exchange.FieldProxyAuthorization, exchange.FieldHTTP2Settings, exchange.FieldExpect,
	exchange.FieldXForwardedFor, exchange.FieldXForwardedHost, exchange.FieldXForwardedProto, exchange.FieldXForwardedPort,
	exchange.FieldXRealIP, exchange.FieldForwarded, exchange.FieldUnderscored, exchange.FieldXRequestID,
)

// madeTrusted leaves in what only an untrusted client must not say.
var madeTrusted = made &^ exchange.SetOf(exchange.FieldForwarded)

// madeDirect leaves in whatever the client says of itself.
var madeDirect = made &^ exchange.SetOf(
	exchange.FieldXForwardedFor, exchange.FieldXForwardedHost, exchange.FieldXForwardedProto, exchange.FieldXForwardedPort,
	exchange.FieldXRealIP, exchange.FieldForwarded, exchange.FieldUnderscored, exchange.FieldXRequestID,
)

// appendRequest appends the request head for the leased backend.
func (f *forward) appendRequest(b []byte) []byte {
	x := f.x
	r := &x.Request
	r.Fields.StripHopByHop()
	f.strip(&r.Fields)
	b = append(b, f.method...)
	b = append(b, ' ')
	b = f.appendTarget(b)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	if f.policy.PassHost && len(r.Host) > 0 { // HTTP/1.0 may come without
		b = append(b, r.Host...)
	} else {
		b = append(b, f.lease.Backend.Host...)
	}
	b = append(b, "\r\n"...)
	skip := made
	switch {
	case x.Direct:
		skip = madeDirect
	case x.Trusted:
		skip = madeTrusted
	}
	b = r.Fields.AppendHTTP1(b, skip)
	if x.Direct {
		return append(f.appendFraming(b), "\r\n"...)
	}
	b = f.appendForwarded(b)
	if id := x.Record.RequestID; id != "" {
		b = append(append(append(b, "X-Request-Id: "...), id...), "\r\n"...)
	}
	return append(f.appendFraming(b), "\r\n"...)
}

// appendTarget appends the request target: what the client sent, except that the normal form is used behind a base
// path, and the rewritten form after a rewriting handler.
func (f *forward) appendTarget(b []byte) []byte {
	r := &f.x.Request
	base := f.lease.Backend.Base
	if base == "" && !r.Rewritten {
		return append(b, r.Target...)
	}
	path := r.Path
	if !r.Rewritten {
		path = r.Normal
	}
	if len(path) == 1 && path[0] == '*' {
		return append(b, '*')
	}
	b = append(append(b, base...), path...)
	if r.Query != nil {
		b = append(append(b, '?'), r.Query...)
	}
	return b
}

// appendForwarded appends who the client is. Values of a trusted proxy are kept and extended.
func (f *forward) appendForwarded(b []byte) []byte {
	x := f.x
	r := &x.Request
	b = append(b, "X-Forwarded-For: "...)
	if x.Trusted {
		for v := range r.Fields.Values("x-forwarded-for") {
			if len(v) > 0 {
				b = append(append(b, v...), ", "...)
			}
		}
	}
	b = appendIP(b, x.Record.Peer.Addr().Unmap())
	b = append(b, "\r\nX-Real-Ip: "...)
	b = appendIP(b, x.Record.ClientIP)
	host := kept(x, exchange.FieldXForwardedHost, r.Host)
	if len(host) > 0 {
		b = append(append(b, "\r\nX-Forwarded-Host: "...), host...)
	}
	b = append(b, "\r\nX-Forwarded-Proto: "...)
	proto := kept(x, exchange.FieldXForwardedProto, scheme(r.TLS))
	b = append(b, proto...)
	b = append(b, "\r\nX-Forwarded-Port: "...)
	b = append(b, kept(x, exchange.FieldXForwardedPort, port(host, proto))...)
	return append(b, "\r\n"...)
}

// appendIP appends an address without its zone, or "unknown" for a peer without one.
func appendIP(b []byte, ip netip.Addr) []byte {
	if !ip.IsValid() {
		return append(b, "unknown"...)
	}
	return ip.WithZone("").AppendTo(b)
}

// kept returns a trusted peer's value of a field, else the own one.
func kept(x *exchange.Exchange, id exchange.FieldID, own []byte) []byte {
	if x.Trusted {
		if v, ok := x.Request.Fields.Known(id); ok && len(v) > 0 {
			return v
		}
	}
	return own
}

var http_, https_ = []byte("http"), []byte("https")

func scheme(tls bool) []byte {
	if tls {
		return https_
	}
	return http_
}

var port80, port443 = []byte("80"), []byte("443")

// port is the port of an authority, or the scheme's.
func port(host, proto []byte) []byte {
	if i := bytes.LastIndexByte(host, ':'); i > bytes.LastIndexByte(host, ']') && i+1 < len(host) {
		return host[i+1:]
	}
	if string(proto) == "https" {
		return port443
	}
	return port80
}

// appendFraming appends what tells the end of the body, and the connection's options.
func (f *forward) appendFraming(b []byte) []byte {
	r := &f.x.Request
	switch {
	case f.key != nil:
		return f.appendUpgrade(b)
	case f.streaming && r.Expect: // the backend decides whether the body is to come (RFC 9110 §10.1.1)
		f.x.ForwardExpect()
		b = append(b, "Expect: 100-continue\r\n"...)
	}
	if f.lease.Reach != nil && !f.up.HTTP2() { // nothing else will come on this connection
		b = append(b, "Connection: close\r\n"...)
	}
	if f.trailers && f.up.HTTP2() { // there it is end-to-end in effect, and gRPC backends insist on it
		b = append(b, "TE: trailers\r\n"...)
	}
	switch {
	case r.ContentLength < 0:
		return append(b, "Transfer-Encoding: chunked\r\n"...)
	case r.ContentLength > 0 || needsLength(r.Method):
		b = append(b, "Content-Length: "...)
		b = strconv.AppendInt(b, r.ContentLength, 10)
		return append(b, "\r\n"...)
	}
	return b
}

// takesTrailers reports whether the client has said that it takes trailers (RFC 9110 §10.1.4).
func takesTrailers(r *exchange.Request) bool {
	if !r.Fields.Has(exchange.FieldTE) {
		return false
	}
	for v := range r.Fields.Values("te") {
		for t := range exchange.Tokens(v) {
			if exchange.EqualFold(t, "trailers") {
				return true
			}
		}
	}
	return false
}

// needsLength reports whether a request without a body should say so (RFC 9110 §8.6).
func needsLength(method []byte) bool {
	switch string(method) {
	case "POST", "PUT", "PATCH":
		return true
	}
	return false
}
