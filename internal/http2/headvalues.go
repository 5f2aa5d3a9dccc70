package http2

import (
	"strings"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// maxLengthDigits keeps a Content-Length inside int64.
const maxLengthDigits = 18

// parseLength accepts one plain number.
func parseLength(v string) (n int64, ok bool) {
	if v == "" || len(v) > maxLengthDigits {
		return 0, false
	}
	for i := range len(v) {
		if !digit(v[i]) {
			return 0, false
		}
		n = n*10 + int64(v[i]-'0')
	}
	return n, true
}

// fieldValue accepts what RFC 9113 §8.2.1 leaves of a value, but for blanks at its ends.
func fieldValue(v string) bool {
	for i := range len(v) {
		if !exchange.ValueByte(v[i]) {
			return false
		}
	}
	return true
}

// lowerName accepts a field name (RFC 9113 §8.2.1).
func lowerName(n string) bool {
	for i := range len(n) {
		if c := n[i]; !exchange.TokenByte(c) || 'A' <= c && c <= 'Z' {
			return false
		}
	}
	return n != "" && len(n) <= maxName
}

// maxName is the longest field name.
const maxName = 1024

// validEscapes accepts a path, up to its query, in which each percent sign is followed by two hexadecimal digits.
func validEscapes(p string) bool {
	for i := 0; i < len(p) && p[i] != '?'; i++ {
		if p[i] != '%' {
			continue
		}
		if i+2 >= len(p) || !hexadecimal(p[i+1]) || !hexadecimal(p[i+2]) {
			return false
		}
		i += 2
	}
	return true
}

func hexadecimal(c byte) bool { return digit(c) || 'a' <= c|0x20 && c|0x20 <= 'f' }

func validToken(m string) bool {
	for i := range len(m) {
		if !exchange.TokenByte(m[i]) {
			return false
		}
	}
	return m != ""
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
