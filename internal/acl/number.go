package acl

import (
	"math/big"
	"strconv"
	"strings"
)

// maxExponent bounds the exponents worth looking at: a finite double has at
// most 309 digits before its point, and a token at most MaxTokenBytes digits.
const maxExponent = MaxTokenBytes + 400

// setNumber fills the number fields of v from a text of the number grammar. It
// reports false when the number is larger than any double: no host can want it
// and its exact form could be of any size.
func (v *Value) setNumber(text string) bool {
	v.Kind, v.Text = Number, text
	if len(text) < 18 { // the usual case: a short plain integer
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			v.IsInt, v.Int, v.Float = true, n, float64(n)
			return true
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return false
	}
	v.Float = f
	digits, ok := integerDigits(text)
	if !ok {
		return true
	}
	v.IsInt = true
	if n, err := strconv.ParseInt(digits, 10, 64); err == nil {
		v.Int = n
		return true
	}
	v.Big, _ = new(big.Int).SetString(digits, 10)
	return true
}

// integerDigits writes a finite number without point and exponent, or reports
// that its fraction is not zero.
func integerDigits(text string) (string, bool) {
	mantissa, exponent := text, 0
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		mantissa = text[:i]
		n, err := strconv.Atoi(text[i+1:])
		if err != nil || n > maxExponent || n < -maxExponent {
			// Out of any range: only the sign and a zero mantissa matter.
			n = maxExponent
			if text[i+1] == '-' {
				n = -n
			}
		}
		exponent = n
	}
	mantissa, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	point := exponent - len(fraction) // the value is digits times ten to this
	trimmed := strings.TrimRight(digits, "0")
	point += len(digits) - len(trimmed)
	if trimmed == "" {
		return "0", true
	}
	if point < 0 {
		return "", false
	}
	digits = trimmed + strings.Repeat("0", point)
	if negative {
		digits = "-" + digits
	}
	return digits, true
}
