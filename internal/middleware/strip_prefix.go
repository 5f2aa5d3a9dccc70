package middleware

import (
	"bytes"
	"strings"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// StripPrefix takes the first prefix that matches off the path. A plain prefix is text, not segments: "/api" makes
// "/x" of "/apix". "base/*" takes base and exactly one segment, which may be empty. The query stays.
//
// It compares and cuts the normal form of the path, so that no spelling of a prefix gets around it, and the result is
// in normal form again: it begins with a slash and holds no dot segment. A cut that would make one is not made.
type StripPrefix struct {
	prefixes []prefix
	next     exchange.Handler
}

// prefix is one item of the list.
type prefix struct {
	text []byte // what the path must begin with; of a wildcard, base with a slash behind it
	wild bool
}

func newStripPrefix(cfg *config.Middleware, _ Deps, next exchange.Handler) (exchange.Handler, error) {
	if cfg.StripPrefix == nil {
		return nil, errNoBlock(cfg.Type)
	}
	s := &StripPrefix{next: next}
	for _, p := range cfg.StripPrefix.Prefixes {
		base, wild := strings.CutSuffix(p, "/*")
		if wild {
			p = base + "/"
		}
		s.prefixes = append(s.prefixes, prefix{[]byte(p), wild})
	}
	return s, nil
}

// Serve rewrites the path and goes on.
func (s *StripPrefix) Serve(x *exchange.Exchange) error {
	path := x.Request.Normal
	if path == nil {
		path = x.Request.Path
	}
	if out, ok := s.strip(path); ok {
		x.Request.Path, x.Request.Normal, x.Request.Rewritten = out, out, true
	}
	return s.next.Serve(x)
}

// strip returns the path without the first prefix that matches, and whether that changed it. The result shares
// memory with path, except where a slash had to be put in front.
func (s *StripPrefix) strip(path []byte) ([]byte, bool) {
	if len(path) == 0 || path[0] != '/' { // the asterisk of OPTIONS
		return path, false
	}
	for _, p := range s.prefixes {
		if !bytes.HasPrefix(path, p.text) || insideEscape(path, len(p.text)) {
			continue
		}
		if len(p.text) == 0 {
			return path, false
		}
		cut := len(p.text)
		if p.wild {
			if i := bytes.IndexByte(path[cut:], '/'); i >= 0 {
				cut += i
			} else {
				cut = len(path)
			}
		}
		return rooted(path, cut)
	}
	return path, false
}

// rooted is path from cut on, with a slash in front.
func rooted(path []byte, cut int) ([]byte, bool) {
	switch {
	case cut == len(path):
		return path[:1], len(path) > 1
	case path[cut] == '/':
		return path[cut:], cut > 0
	case path[cut-1] == '/':
		return path[cut-1:], cut > 1
	case dotted(path[cut:]):
		return path, false
	}
	out := make([]byte, 0, 1+len(path)-cut)
	return append(append(out, '/'), path[cut:]...), true
}

// insideEscape reports whether a cut would part a percent escape.
func insideEscape(path []byte, cut int) bool {
	return cut >= 1 && path[cut-1] == '%' || cut >= 2 && path[cut-2] == '%'
}

// dotted reports whether the rest of a segment would be read as a dot segment by some server: "." or ".." before
// an end, a parameter or an escaped slash.
func dotted(rest []byte) bool {
	n := 0
	for n < len(rest) && n < 2 && rest[n] == '.' {
		n++
	}
	return n > 0 && (n == len(rest) || bytes.IndexByte([]byte("/;%"), rest[n]) >= 0)
}
