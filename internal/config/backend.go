package config

import (
	"net/url"
	"strconv"
	"strings"
)

// isStream reports whether a scheme names backends of connections: bytes as they come, or inside TLS.
func isStream(scheme string) bool { return scheme == "tcp" || scheme == "tls" }

// webSocketSchemes are those of backends that speak nothing but WebSocket, and what carries it (RFC 6455 section 3).
var webSocketSchemes = map[string]string{"ws": "http", "wss": "https"}

// backend decodes the URL of a server into s. It reports and returns false when it cannot be used.
func (d *decoder) backend(t text, title string, s *Server) bool {
	s.URL = t.s
	scheme, rest, found := strings.Cut(t.s, ":")
	scheme = strings.ToLower(scheme)
	if carrier := webSocketSchemes[scheme]; carrier != "" && strings.HasPrefix(rest, "//") {
		scheme, s.WebSocket = carrier, true
	}
	switch {
	case !found:
		return d.badURL(t, title, "needs a scheme and a host", `write "http://host:port"`)
	case scheme == "unix":
		return d.unixBackend(t, title, rest, s)
	case scheme == "http" || scheme == "https" || scheme == "h2c" || (isStream(scheme) || scheme == "udp") && strings.HasPrefix(rest, "//"):
	case strings.HasPrefix(t.s, "[") || isPort(rest) && isHost(scheme):
		scheme, rest, s.bare = "tcp", "//"+t.s, true // where no protocol is spoken none need be named
	default:
		return d.badURL(t, title, "must begin with http://, https://, h2c://, ws://, wss://, tcp://, tls://, udp:// or unix:", "")
	}
	authority, ok := strings.CutPrefix(rest, "//")
	if !ok {
		return d.badURL(t, title, "needs // behind the scheme", `write "`+scheme+`://host:port"`)
	}
	base := ""
	if i := strings.IndexAny(authority, "/?#"); i >= 0 {
		authority, base = authority[:i], authority[i:]
	}
	switch {
	case strings.Contains(authority, "@"):
		return d.badURL(t, title, "must not hold credentials", "set the field with a headers middleware and env(...) or file(...)")
	case strings.ContainsAny(base, "?#"):
		return d.badURL(t, title, "must not have a query or fragment", "")
	case (isStream(scheme) || scheme == "udp") && strings.Trim(base, "/") != "":
		return d.badURL(t, title, "must not have a path: no protocol is spoken there that has one", `write "http://host:port/path" for an http backend`)
	case badBase(base):
		return d.badURL(t, title, "has a path that is not in normal form", "")
	}
	host, port, hasPort := cutPort(authority)
	if !hasPort && strings.HasSuffix(authority, ":") {
		return d.badURL(t, title, "has an empty port", "")
	}
	canonical, why := canonicalHost(host)
	if why != "" {
		return d.badURL(t, title, why, "")
	}
	s.Host = canonical
	usual := map[string]string{"http": "80", "https": "443", "h2c": "80"}[scheme]
	if !hasPort && usual == "" {
		return d.badURL(t, title, "needs a port", `write "`+scheme+`://host:port"`)
	} else if !hasPort {
		port = usual
	} else {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return d.badURL(t, title, "has a port that is not a number from 1 to 65535", "")
		}
		port = strconv.FormatUint(n, 10)
		if port != usual {
			s.Host += ":" + port
		}
	}
	s.Scheme, s.Addr, s.Base = scheme, canonical+":"+port, strings.TrimSuffix(base, "/")
	return true
}

func (d *decoder) unixBackend(t text, title, path string, s *Server) bool {
	path = strings.TrimPrefix(path, "//")
	if why := badUnixPath(path); why != "" {
		return d.badURL(t, title, why, `write "unix:/run/app.sock"`)
	}
	s.Scheme, s.Addr, s.Host = "http", "unix:"+path, "localhost"
	return true
}

// badURL reports a backend URL. The URL itself is shown only when it cannot hold credentials.
func (d *decoder) badURL(t text, title, why, hint string) bool {
	diag := d.bad(t, CodeURL, "url in %s %s", title, why)
	diag.Hint = hint
	diag.ShowValue = diag.ShowValue && !strings.Contains(t.s, "@")
	return false
}

func isHost(s string) bool {
	_, why := canonicalHost(s)
	return why == ""
}

// isPort accepts a port with an optional path behind it, as in a backend written without a scheme.
func isPort(s string) bool {
	s, _, _ = strings.Cut(s, "/")
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// badBase refuses base paths that a backend and a gateway could read differently: bad escapes, dot segments, empty
// segments and raw bytes that no path may hold.
func badBase(base string) bool {
	if base == "" || base == "/" {
		return false
	}
	u, err := url.PathUnescape(base)
	if err != nil {
		return true
	}
	for _, c := range []byte(base) {
		if c <= ' ' || c >= 0x7f || strings.IndexByte("\"<>\\^`{|}", c) >= 0 {
			return true
		}
	}
	for _, seg := range strings.Split(strings.TrimSuffix(u, "/")[1:], "/") {
		if seg == "" || seg == "." || seg == ".." {
			return true
		}
	}
	return strings.ContainsAny(u, "\\\x00")
}
