package route

import "bytes"

// pathByte classes, one a byte value.
const (
	pathPlain  = iota // stands for itself: pchar without the percent sign
	pathSlash         // separates segments
	pathEscape        // the percent sign
	pathEncode        // not allowed by RFC 3986 but harmless: equal to its percent escape
	pathRefuse        // never
)

// pathClass classifies raw bytes of a path after RFC 3986 section 3.3. The backslash is refused even where its escape
// is allowed: it stands in no valid path, and some backends take it for a slash.
var pathClass = func() (t [256]uint8) {
	for i := range t {
		switch c := byte(i); {
		case isUnreserved(c) || bytes.IndexByte([]byte("!$&'()*+,;=:@"), c) >= 0:
			t[i] = pathPlain
		case c == '/':
			t[i] = pathSlash
		case c == '%':
			t[i] = pathEscape
		case c <= ' ' || c == 0x7f || c == '\\' || c == '?' || c == '#':
			t[i] = pathRefuse
		default:
			t[i] = pathEncode
		}
	}
	return t
}()

func isUnreserved(c byte) bool {
	return isAlpha(c) || isDigit(c) || c == '-' || c == '.' || c == '_' || c == '~'
}

// NormalPath brings the path of a request target (without its query) to the one form that rules are compared with:
//
//   - dot segments are removed (RFC 3986 section 5.2.4), after decoding, and a path never climbs above its root;
//   - slashes that follow each other are merged;
//   - percent escapes of unreserved characters are decoded, all others are kept with capital digits;
//   - raw bytes that RFC 3986 does not allow but clients send (non-ASCII, quotes, braces, …) become percent escapes;
//   - an empty path becomes "/"; the asterisk of OPTIONS stays.
//
// Escaped slashes and backslashes are ErrPathSlash, unless allowEncodedSlash keeps them (still escaped). Even then a
// dot segment beside one is refused, as is a dot segment with a parameter ("/..;/"): some backends would take it for
// a dot segment, others not. Controls, blanks, raw backslashes, "?" and "#", bad escapes and "%00" are refused.
// Each error means status 400.
//
// A path already in normal form is returned itself, with changed false and without an allocation. Otherwise the
// result is built in dst[:0], which must not overlap path and grows where it is too small. NormalPath is idempotent.
func NormalPath(dst, path []byte, allowEncodedSlash bool) (norm []byte, changed bool, err error) {
	if len(path) == 0 {
		return append(dst[:0], '/'), true, nil
	}
	if len(path) == 1 && path[0] == '*' {
		return path, false, nil
	}
	if path[0] != '/' {
		return nil, false, ErrPathForm
	}
	if isNormal(path) {
		return path, false, nil
	}
	out := append(dst[:0], '/')
	for rest := path[1:]; ; {
		seg, last := rest, true
		if i := bytes.IndexByte(rest, '/'); i >= 0 {
			seg, rest, last = rest[:i], rest[i+1:], false
		}
		// Here out ends with a slash, always.
		start := len(out)
		out, err = appendSegment(out, seg, allowEncodedSlash)
		if err != nil {
			return nil, false, err
		}
		switch dotsOf(out[start:]) {
		case 1:
			out = out[:start]
		case 2:
			out = out[:start]
			if start > 1 {
				out = out[:bytes.LastIndexByte(out[:start-1], '/')+1]
			}
		default:
			if !last && len(out) > start {
				out = append(out, '/')
			}
		}
		if last {
			break
		}
	}
	if bytes.Equal(out, path) {
		return path, false, nil
	}
	return out, true, nil
}

// dotsOf returns 1 for the segment ".", 2 for "..", else 0.
func dotsOf(seg []byte) int {
	if len(seg) > 0 && len(seg) <= 2 && seg[0] == '.' && seg[len(seg)-1] == '.' {
		return len(seg)
	}
	return 0
}

// isNormal finds paths that need no work. It may say no to one that turns out unchanged (only with an escaped
// slash), never yes to one that changes or is refused.
func isNormal(path []byte) bool {
	for i := 0; i < len(path); i++ {
		switch pathClass[path[i]] {
		case pathPlain:
		case pathSlash:
			if i+1 < len(path) && (path[i+1] == '/' || path[i+1] == '.' && startsDotted(path[i+1:])) {
				return false
			}
		case pathEscape:
			v, ok := unhex(path[i+1:])
			if !ok || v == 0 || v == '/' || v == '\\' || isUnreserved(v) || path[i+1] >= 'a' || path[i+2] >= 'a' {
				return false
			}
			i += 2
		default:
			return false
		}
	}
	return true
}

// startsDotted tells whether the segment that s starts with is a dot segment, with or without parameters.
func startsDotted(s []byte) bool {
	n := 1
	if len(s) > 1 && s[1] == '.' {
		n = 2
	}
	return len(s) == n || s[n] == '/' || s[n] == ';'
}

// appendSegment appends the normal form of one segment.
func appendSegment(out, seg []byte, allowSlash bool) ([]byte, error) {
	start, piece := len(out), len(out) // piece: where the part behind the last escaped slash begins
	for i := 0; i < len(seg); i++ {
		c := seg[i]
		switch pathClass[c] {
		case pathPlain:
			out = append(out, c)
		case pathEncode:
			out = appendEscape(out, c)
		case pathEscape:
			v, ok := unhex(seg[i+1:])
			if !ok || v == 0 {
				return out, ErrPathEscape
			}
			i += 2
			switch {
			case isUnreserved(v):
				out = append(out, v)
			case v == '/' || v == '\\':
				if !allowSlash {
					return out, ErrPathSlash
				}
				if startsDottedPiece(out[piece:]) {
					return out, ErrPathDots
				}
				out = appendEscape(out, v)
				piece = len(out)
			default:
				out = appendEscape(out, v)
			}
		default:
			return out, ErrPathByte
		}
	}
	if s := out[piece:]; startsDottedPiece(s) && (piece > start || dotsOf(s) == 0) {
		return out, ErrPathDots
	}
	return out, nil
}

func startsDottedPiece(s []byte) bool { return len(s) > 0 && s[0] == '.' && startsDotted(s) }

func appendEscape(out []byte, c byte) []byte {
	const digits = "0123456789ABCDEF"
	return append(out, '%', digits[c>>4], digits[c&15])
}

// unhex reads two hexadecimal digits.
func unhex(s []byte) (byte, bool) {
	if len(s) < 2 {
		return 0, false
	}
	hi, ok1 := unhexDigit(s[0])
	lo, ok2 := unhexDigit(s[1])
	return hi<<4 | lo, ok1 && ok2
}

func unhexDigit(c byte) (byte, bool) {
	switch {
	case isDigit(c):
		return c - '0', true
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return (c | 0x20) - 'a' + 10, true
	}
	return 0, false
}
