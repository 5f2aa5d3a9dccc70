package telemetry

import (
	"crypto/tls"
	"errors"
	"net/netip"
	"strconv"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Bounds of what a client can put into one entry, in bytes before escaping. Even when every byte is escaped, an
// entry fits into a chunk.
const (
	maxMethod    = 32
	maxPath      = 4096
	maxHost      = 256
	maxUserAgent = 1024
	maxName      = 256 // configured names, ids
	maxBackend   = 512
	maxCause     = 512
)

// encoder makes entries. It remembers the text of the current second.
type encoder struct {
	buf    []byte
	second int64
	rfc    [19]byte // 2006-01-02T15:04:05
	clf    [20]byte // 02/Jan/2006:15:04:05
}

const clfTime = "02/Jan/2006:15:04:05"

// at makes rfc and clf the texts of t's second, in UTC.
func (e *encoder) at(t time.Time) {
	if s := t.Unix(); s != e.second || e.rfc[0] == 0 {
		e.second = s
		t = t.UTC()
		t.AppendFormat(e.rfc[:0], "2006-01-02T15:04:05")
		t.AppendFormat(e.clf[:0], clfTime)
	}
}

// path is the path as the client sent it. Request.Path may have been rewritten since.
func path(x *exchange.Exchange) []byte {
	for i, c := range x.Request.Target {
		if c == '?' || c == '#' {
			return x.Request.Target[:i]
		}
	}
	return x.Request.Target
}

// json encodes the entry of an exchange as one line of JSON. Queries, credentials and every field but Host and
// User-Agent stay out.
func (e *encoder) json(x *exchange.Exchange) {
	r := &x.Record
	end := r.Start.Add(r.Duration)
	e.at(end)
	b := append(e.buf[:0], `{"timestamp":"`...)
	b = append(b, e.rfc[:]...)
	ms := end.Nanosecond() / int(time.Millisecond)
	b = append(b, '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10))
	b = append(b, `Z","client_ip":`...)
	b = appendAddr(b, r.ClientIP)
	b = append(b, `,"method":`...)
	b = appendText(b, x.Request.Method, maxMethod)
	b = append(b, `,"path":`...)
	b = appendText(b, path(x), maxPath)
	b = append(b, `,"host":`...)
	b = appendText(b, x.Request.Host, maxHost)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(statusOf(x)), 10)
	b = append(b, `,"response_bytes":`...)
	b = strconv.AppendInt(b, r.BytesOut, 10)
	b = append(b, `,"duration_ms":`...)
	b = strconv.AppendInt(b, r.Duration.Milliseconds(), 10)
	b = append(b, `,"backend":`...)
	b = appendText(b, r.Backend(), maxBackend)
	b = append(b, `,"router":`...)
	b = appendText(b, r.Router, maxName)
	b = append(b, `,"entrypoint":`...)
	b = appendText(b, entrypoint(x), maxName)
	b = append(b, `,"user_agent":`...)
	agent, _ := x.Request.Fields.Known(exchange.FieldUserAgent)
	b = appendText(b, agent, maxUserAgent)
	e.buf = append(appendOptional(b, x), "}\n"...)
}

// appendOptional appends the members that stand only where there is something to say.
func appendOptional(b []byte, x *exchange.Exchange) []byte {
	r := &x.Record
	b = append(b, `,"peer_ip":`...)
	peer := r.Peer
	if x.Conn != nil && x.Conn.Via.IsValid() { // the socket's other end has named its client
		peer = x.Conn.Via
	}
	b = appendAddr(b, peer.Addr())
	if r.ClientIdentity != "" {
		b = append(b, `,"client_identity":`...)
		b = appendText(b, r.ClientIdentity, maxName)
	}
	if r.RequestID != "" {
		b = append(b, `,"request_id":`...)
		b = appendText(b, r.RequestID, maxName)
	}
	if r.TraceID != "" {
		b = append(b, `,"trace_id":`...)
		b = appendText(b, r.TraceID, maxName)
	}
	b = append(b, `,"protocol":"`...)
	b = append(b, x.Request.Protocol.String()...)
	b = append(b, `","outcome":"`...)
	b = append(b, r.Outcome.String()...)
	b = append(b, `","bytes_in":`...)
	b = strconv.AppendInt(b, r.BytesIn, 10)
	b = appendDatagrams(b, x)
	if r.FirstByteAt > 0 {
		b = append(b, `,"ttft_ms":`...)
		b = strconv.AppendInt(b, r.FirstByteAt.Milliseconds(), 10)
	}
	if n := len(r.Attempts); n > 0 {
		b = append(b, `,"attempts":`...)
		b = strconv.AppendInt(b, int64(n), 10)
	}
	if r.Code != "" {
		b = append(b, `,"error_code":`...)
		b = appendText(b, string(r.Code), maxName)
	}
	if r.Limit != "" {
		b = append(b, `,"limit":`...)
		b = appendText(b, r.Limit, maxName)
	}
	if r.Err != nil {
		b = appendCause(b, r)
	}
	if v := tlsVersion(x); v != "" {
		b = append(b, `,"tls_version":"`...)
		b = append(b, v...)
		b = append(b, '"')
	}
	return b
}

// appendCause says what went wrong behind us, or what is wrong with a request that was refused. Other causes of a refusal may
// quote the client.
func appendCause(b []byte, r *exchange.Record) []byte {
	if r.Outcome == exchange.OutcomeFailed || r.Outcome == exchange.OutcomeAborted {
		b = append(b, `,"error":`...)
		return appendText(b, maskURLs(r.Err.Error()), maxCause)
	}
	if fault, ok := errors.AsType[exchange.Fault](r.Err); ok {
		b = append(b, `,"error":`...)
		b = appendText(b, string(fault), maxCause)
	}
	return b
}

// common encodes the entry in the combined log format. The referrer loses its query like the path does.
func (e *encoder) common(x *exchange.Exchange) {
	r := &x.Record
	e.at(r.Start.Add(r.Duration))
	b := e.buf[:0]
	if ip := r.ClientIP; ip.IsValid() {
		b = ip.AppendTo(b)
	} else {
		b = append(b, '-')
	}
	b = append(b, " - - ["...)
	b = append(b, e.clf[:]...)
	b = append(b, ` +0000] "`...)
	b = appendLogged(b, x.Request.Method, maxMethod)
	b = append(b, ' ')
	b = appendLogged(b, path(x), maxPath)
	b = append(b, ' ')
	b = append(b, x.Request.Protocol.String()...)
	b = append(b, `" `...)
	b = strconv.AppendInt(b, int64(statusOf(x)), 10)
	b = append(b, ' ')
	b = strconv.AppendInt(b, r.BytesOut, 10)
	b = append(b, ` "`...)
	referrer, _ := x.Request.Fields.First("referer")
	b = appendLogged(b, locator(referrer), maxPath)
	b = append(b, `" "`...)
	agent, _ := x.Request.Fields.Known(exchange.FieldUserAgent)
	b = appendLogged(b, agent, maxUserAgent)
	e.buf = append(b, "\"\n"...)
}

// locator is a URL without what may be secret in it: query, fragment; nothing at all when it names a user.
func locator(u []byte) []byte {
	for i, c := range u {
		switch c {
		case '?', '#':
			return u[:i]
		case '@':
			return nil
		}
	}
	return u
}

func entrypoint(x *exchange.Exchange) string {
	if x.Record.Entrypoint == "" && x.Conn != nil {
		return x.Conn.Entrypoint
	}
	return x.Record.Entrypoint
}

func tlsVersion(x *exchange.Exchange) string {
	if x.Conn == nil || x.Conn.TLS == nil {
		return ""
	}
	switch x.Conn.TLS.Version {
	case tls.VersionTLS13:
		return "1.3"
	case tls.VersionTLS12:
		return "1.2"
	}
	return "other"
}

// appendAddr appends an address as a JSON string; null when there is none. A mapped IPv4 address is shown as IPv4.
func appendAddr(b []byte, a netip.Addr) []byte {
	if !a.IsValid() {
		return append(b, "null"...)
	}
	b = append(b, '"')
	b = a.Unmap().WithZone("").AppendTo(b)
	return append(b, '"')
}

// plain tells which bytes stand in a JSON string, and in a quoted part of the combined format, as they are.
var plain = func() (t [256]bool) {
	for c := 0x20; c < 0x7f; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

const hexDigits = "0123456789abcdef"

// appendText appends s as a JSON string of at most limit source bytes; null when it is empty.
func appendText[T string | []byte](b []byte, s T, limit int) []byte {
	if len(s) == 0 {
		return append(b, "null"...)
	}
	if len(s) > limit {
		s = s[:limit]
	}
	b = append(b, '"')
	for i := 0; i < len(s); i++ {
		if !plain[s[i]] {
			b = append(b, s[:i]...)
			return append(appendEscaped(b, s[i:]), '"')
		}
	}
	b = append(b, s...)
	return append(b, '"')
}

// appendEscaped appends text for a JSON string. Valid UTF-8 stays, except for control characters, which may do harm
// on a terminal; a byte that is no UTF-8 is shown as the character with its number.
func appendEscaped[T string | []byte](b []byte, s T) []byte {
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case plain[c]:
			b = append(b, c)
			i++
			continue
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
			i++
			continue
		case c >= utf8.RuneSelf:
			// string of at most four bytes: does not leave the stack
			part := string(s[i:min(i+utf8.UTFMax, len(s))])
			if r, n := utf8.DecodeRuneInString(part); n > 1 && r > 0x9f && !isSeparator(r) {
				b = append(b, part[:n]...)
				i += n
				continue
			}
		}
		b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		i++
	}
	return b
}

// isSeparator reports the line separators and direction marks of Unicode, which make a log read as what it is not.
func isSeparator(r rune) bool {
	return r == 0x2028 || r == 0x2029 || unicode.Is(unicode.Bidi_Control, r)
}

// appendLogged appends s for a quoted part of the combined format; "-" when it is empty. Bytes outside printable
// ASCII, quotes and backslashes become \xHH.
func appendLogged(b, s []byte, limit int) []byte {
	if len(s) == 0 {
		return append(b, '-')
	}
	if len(s) > limit {
		s = s[:limit]
	}
	for _, c := range s {
		if plain[c] {
			b = append(b, c)
		} else {
			b = append(b, '\\', 'x', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return b
}
