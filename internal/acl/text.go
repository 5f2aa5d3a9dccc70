package acl

import "unicode/utf8"

// stringStep looks at the first character or escape of the inside of a string
// literal: decoded is how many bytes it decodes to, width how many bytes it
// takes in the source and chars how many characters. quote is 0 for a bareword.
func stringStep(text string, quote byte) (decoded, width, chars int) {
	if text[0] == '\\' && len(text) > 1 && escape(quote, text[1]) != 0 {
		return 1, 2, 2
	}
	_, size := utf8.DecodeRuneInString(text)
	return size, size, 1
}

// escape returns what a backslash followed by c stands for inside that kind of
// quote, or 0 when the two characters stand for themselves.
func escape(quote, c byte) byte {
	switch {
	case quote == '\'' && c == '\'':
		return '\''
	case quote != '"':
		return 0
	}
	switch c {
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case '\\', '"':
		return c
	}
	return 0
}

// decodeString returns the text of a string literal. inner is what stands
// between the quotes. Without a real escape it is returned as it is.
func decodeString(inner string, quote byte) string {
	var out []byte
	done := 0
	for i := 0; i+1 < len(inner); i++ {
		if inner[i] != '\\' {
			continue
		}
		c := escape(quote, inner[i+1])
		if c == 0 {
			// Kept with its backslash; the next character cannot start an
			// escape of its own only if it is a backslash, which in double
			// quotes is an escape and in single quotes never is.
			continue
		}
		if out == nil {
			out = make([]byte, 0, len(inner))
		}
		out = append(append(out, inner[done:i]...), c)
		i++
		done = i + 1
	}
	if out == nil {
		return inner
	}
	return string(append(out, inner[done:]...))
}
