package exchange

import "iter"

// EqualFold compares b with an all-lower-case ASCII string, ignoring the case of ASCII letters in b.
func EqualFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i := 0; i < len(lower); i++ {
		c := b[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

func equalFoldString(b []byte, s string) bool {
	for i := 0; i < len(s); i++ {
		x, y := b[i], s[i]
		if 'A' <= x && x <= 'Z' {
			x |= 0x20
		}
		if 'A' <= y && y <= 'Z' {
			y |= 0x20
		}
		if x != y {
			return false
		}
	}
	return true
}

// Tokens yields the elements of a comma-separated list, blanks trimmed, empty ones left out.
func Tokens(v []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for len(v) > 0 {
			end := len(v)
			next := len(v)
			for i, c := range v {
				if c == ',' {
					end, next = i, i+1
					break
				}
			}
			tok := trimBlanks(v[:end])
			v = v[next:]
			if len(tok) > 0 && !yield(tok) {
				return
			}
		}
	}
}

func trimBlanks(v []byte) []byte {
	for len(v) > 0 && (v[0] == ' ' || v[0] == '\t') {
		v = v[1:]
	}
	for len(v) > 0 && (v[len(v)-1] == ' ' || v[len(v)-1] == '\t') {
		v = v[:len(v)-1]
	}
	return v
}

var tokenByte, valueByte = classes()

func classes() (tok, val [256]bool) {
	for c := 0x20; c < 256; c++ {
		val[c] = c != 0x7f
	}
	val['\t'] = true
	for c := '0'; c <= '9'; c++ {
		tok[c] = true
	}
	for c := 'a'; c <= 'z'; c++ {
		tok[c], tok[c-0x20] = true, true
	}
	for _, c := range "!#$%&'*+-.^_`|~" {
		tok[c] = true
	}
	return tok, val
}

// TokenByte reports whether c may stand in a token (RFC 9110 §5.6.2).
func TokenByte(c byte) bool { return tokenByte[c] }

// ValueByte reports whether c may stand in a field value: no control byte but tab, no DEL.
func ValueByte(c byte) bool { return valueByte[c] }

// ValidName reports whether s is a field name.
func ValidName(s string) bool {
	for i := 0; i < len(s); i++ {
		if !tokenByte[s[i]] {
			return false
		}
	}
	return s != "" && len(s) <= 1024
}

// ValidValue reports whether s can be sent as a field value: no control bytes, no blank at either end.
func ValidValue(s string) bool {
	for i := 0; i < len(s); i++ {
		if !valueByte[s[i]] {
			return false
		}
	}
	return s == "" || s[0] != ' ' && s[0] != '\t' && s[len(s)-1] != ' ' && s[len(s)-1] != '\t'
}
