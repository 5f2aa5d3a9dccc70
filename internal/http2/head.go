package http2

import (
	"bytes"
	"net/http"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// headError says what is wrong with a request, to the operator.
type headError string

func (e headError) Error() string { return string(e) }

// badHead is the answer to every malformed head that the frame loop let pass (RFC 9113 §8.1.1).
func badHead(why string) *exchange.Error {
	e := exchange.Reject(400, exchange.CodeBadRequest, "Malformed request")
	e.Err = headError(why)
	return e
}

// fill takes the request out of what the frame loop decoded. Path, query and authority are the bytes received. On an
// error the request is empty but for its protocol.
func (st *stream) fill() *exchange.Error {
	q, r := &st.x.Request, st.r
	q.Protocol, q.TLS = exchange.HTTP2, st.c.info.TLS != nil
	q.Method, q.Target, q.Path, q.Query, q.Host, q.Upgrade = nil, nil, nil, nil, nil, nil
	q.Expect, q.ContentLength = false, 0
	q.Fields.Reset(nil)
	size, err := checkHead(r, st.set)
	if err != nil {
		return err
	}
	st.spell(slices.Grow(st.block[:0], size))
	if i := bytes.IndexByte(q.Target, '?'); i >= 0 {
		q.Path, q.Query = q.Target[:i], q.Target[i+1:]
	} else {
		q.Path = q.Target
	}
	q.ContentLength = r.ContentLength
	if _, ok := r.Header["Expect"]; ok { // 100-continue is the frame loop's, which has taken it away
		return exchange.Reject(417, exchange.CodeExpectationFailed, "Expectation not supported")
	}
	return nil
}

// spell writes the request into b, which is large enough, the way HTTP/1.1 would: what forwards it needs no second form.
func (st *stream) spell(b []byte) {
	q, r := &st.x.Request, st.r
	b = append(b, r.Method...)
	b = append(b, r.RequestURI...)
	b = st.line(b, "host", r.Host)
	st.names = st.names[:0]
	for name := range r.Header {
		if name != "Host" {
			st.names = append(st.names, name)
		}
	}
	slices.Sort(st.names) // the frame loop keeps no order between fields
	for _, name := range st.names {
		for _, v := range r.Header[name] {
			b = st.line(b, name, v)
		}
	}
	st.block = b
	q.Fields.Rebase(b)
	m, t := len(r.Method), len(r.RequestURI)
	q.Method, q.Target = b[:m], b[m:m+t]
	q.Host, _ = q.Fields.Known(exchange.FieldHost)
}

// line appends one field with its name in lower case.
func (st *stream) line(b []byte, name, value string) []byte {
	l := exchange.RawLine{Start: len(b)}
	for i := range len(name) {
		c := name[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		b = append(b, c)
	}
	l.NameEnd = len(b)
	b = append(b, ": "...)
	l.Value = len(b)
	b = append(b, value...)
	l.ValueEnd = len(b)
	b = append(b, "\r\n"...)
	l.End = len(b)
	l.ID = exchange.KnownField(b[l.Start:l.NameEnd])
	st.x.Request.Fields.AppendLine(l)
	return b
}

// requestLineExtra is what HTTP/1.1 has around method and target: two blanks, the version and the line end.
const requestLineExtra = 12

// checkHead holds a request against the rules and limits that HTTP/1.1 heads are held against, and returns how many
// bytes it has when spelled out.
func checkHead(r *http.Request, set *Settings) (int, *exchange.Error) {
	if !validMethod(r.Method) {
		return 0, badHead("method is not a token")
	}
	size := requestLineExtra + len(r.Method) + len(r.RequestURI)
	if size > set.MaxHeaderBytes {
		return 0, exchange.Reject(414, exchange.CodeURITooLong, "Request target too long")
	}
	if !validTarget(r.Method, r.RequestURI) {
		return 0, badHead("request target has a forbidden byte or is of no known form")
	}
	if err := checkAuthority(r); err != nil {
		return 0, err
	}
	size += len("host: \r\n") + len(r.Host)
	count := 1
	for name, values := range r.Header {
		if name == "Host" {
			continue
		}
		if !exchange.ValidName(name) {
			return 0, badHead("field has no valid name")
		}
		for _, v := range values {
			if !exchange.ValidValue(v) {
				return 0, badHead("field value has a forbidden byte")
			}
			size += len(name) + len(v) + len(": \r\n")
		}
		count += len(values)
	}
	switch {
	case size > set.MaxHeaderBytes:
		return 0, exchange.Reject(431, exchange.CodeHeaderTooLarge, "Request header fields too large")
	case count > set.MaxHeaders:
		return 0, exchange.Reject(431, exchange.CodeHeaderTooLarge, "Too many request header fields")
	case !validLength(r.Header["Content-Length"]):
		return 0, badHead("Content-Length is not a plain number")
	}
	return size, nil
}

// checkAuthority wants one authority, whether it came as :authority, as Host, or the same in both (RFC 9113 §8.3.1).
func checkAuthority(r *http.Request) *exchange.Error {
	hosts := r.Header["Host"]
	switch {
	case len(hosts) > 1:
		return badHead("more than one Host")
	case len(hosts) == 1 && !strings.EqualFold(hosts[0], r.Host):
		return badHead("Host differs from :authority")
	case r.Host == "":
		return badHead("no authority")
	case !validAuthority(r.Host):
		return badHead("authority is malformed")
	}
	return nil
}

func validMethod(m string) bool {
	for i := range len(m) {
		if !exchange.TokenByte(m[i]) {
			return false
		}
	}
	return m != ""
}

// validTarget accepts a path with its query, * for OPTIONS, and an authority for CONNECT.
func validTarget(method, t string) bool {
	switch {
	case t == "":
		return false
	case method == "CONNECT":
		return validAuthority(t)
	case t == "*":
		return method == "OPTIONS"
	case t[0] != '/':
		return false
	}
	for i := range len(t) {
		if c := t[i]; c <= 0x20 || c >= 0x7f || c == '#' {
			return false
		}
	}
	return true
}

// maxLengthDigits keeps a Content-Length inside int64.
const maxLengthDigits = 18

// validLength accepts no Content-Length or one plain number.
func validLength(values []string) bool {
	if len(values) == 0 {
		return true
	}
	v := values[0]
	for i := range len(v) {
		if !digit(v[i]) {
			return false
		}
	}
	return len(values) == 1 && v != "" && len(v) <= maxLengthDigits
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

// authorityByte are the bytes of a host and port (RFC 3986 §3.2) but the at sign: user information is refused.
func authorityByte(c byte) bool {
	return digit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || strings.IndexByte("-._~%!$&'()*+;=:[]", c) >= 0
}

// validAuthority accepts host[:port] (RFC 9110 §7.2), the host a name or a bracketed literal.
func validAuthority(a string) bool {
	host, port, hasPort := strings.Cut(a, ":")
	if strings.HasPrefix(a, "[") {
		end := strings.IndexByte(a, ']')
		if end < 0 {
			return false
		}
		host, port = a[1:end], a[end+1:]
		if hasPort = port != ""; hasPort {
			if port[0] != ':' {
				return false
			}
			port = port[1:]
		}
	} else if strings.IndexByte(host, '[') >= 0 || strings.IndexByte(host, ']') >= 0 {
		return false
	}
	if host == "" || strings.IndexByte(host, '[') >= 0 {
		return false
	}
	for i := range len(host) {
		if !authorityByte(host[i]) {
			return false
		}
	}
	return !hasPort || validPort(port)
}

// validPort accepts up to 65535, and the empty port (RFC 3986 §3.2.3).
func validPort(p string) bool {
	n := 0
	for i := range len(p) {
		if !digit(p[i]) {
			return false
		}
		n = n*10 + int(p[i]-'0')
	}
	return len(p) <= 5 && n <= 65535
}
