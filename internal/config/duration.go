package config

import (
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// maxSeconds bounds every duration: one year.
const maxSeconds = 365 * 24 * 3600

const tooLong = "must be at most 8760h"

// parseDuration reads number-unit pairs (ms, s, m, h), each number with an optional fraction, blanks anywhere between
// the parts. A single number without a unit counts seconds. It says what is wrong, or "".
func parseDuration(s string) (time.Duration, string) {
	rest := strings.Trim(s, " \t")
	if rest == "" {
		return 0, "is empty"
	}
	if len(rest) > 100 {
		return 0, "is not a duration"
	}
	total := new(big.Rat)
	for pairs := 0; rest != ""; pairs++ {
		n := 0
		for n < len(rest) && (rest[n] >= '0' && rest[n] <= '9' || rest[n] == '.') {
			n++
		}
		number := rest[:n]
		rest = strings.TrimLeft(rest[n:], " \t")
		u := 0
		for u < len(rest) && rest[u] >= 'a' && rest[u] <= 'z' {
			u++
		}
		word := rest[:u]
		rest = strings.TrimLeft(rest[u:], " \t")
		unit, ok := durationUnit(word, pairs == 0 && rest == "")
		if !ok || !isDecimal(number) {
			return 0, "is not a duration"
		}
		part, _ := new(big.Rat).SetString(strings.TrimSuffix(number, "."))
		total.Add(total, part.Mul(part, new(big.Rat).SetInt64(int64(unit))))
	}
	return fromRat(total)
}

func durationUnit(word string, alone bool) (time.Duration, bool) {
	switch word {
	case "ms":
		return time.Millisecond, true
	case "s":
		return time.Second, true
	case "m":
		return time.Minute, true
	case "h":
		return time.Hour, true
	}
	return time.Second, word == "" && alone
}

// isDecimal accepts digits with at most one point, and a digit before it.
func isDecimal(s string) bool {
	return s != "" && s[0] != '.' && strings.Count(s, ".") <= 1
}

func fromRat(r *big.Rat) (time.Duration, string) {
	if r.Cmp(new(big.Rat).SetInt64(maxSeconds*int64(time.Second))) > 0 {
		return 0, tooLong
	}
	return time.Duration(new(big.Int).Quo(r.Num(), r.Denom()).Int64()), ""
}

// secondsOf reads a number literal as seconds.
func secondsOf(v *acl.Value) (time.Duration, string) {
	switch {
	case v.Float < 0:
		return 0, "must be greater than zero"
	case v.Float > maxSeconds:
		return 0, tooLong
	case v.IsInt:
		return time.Duration(v.Int) * time.Second, ""
	}
	return time.Duration(math.Round(v.Float * float64(time.Second))), ""
}

// FormatDuration writes a duration in the canonical form of every view: the largest of m, s and ms that gives a whole
// number ("60m", "90s", "250ms"), which older readers of this language accept too; fractions of a millisecond are
// written as decimals.
func FormatDuration(d time.Duration) string {
	switch {
	case d == 0:
		return "0s"
	case d%time.Minute == 0:
		return strconv.FormatInt(int64(d/time.Minute), 10) + "m"
	case d%time.Second == 0:
		return strconv.FormatInt(int64(d/time.Second), 10) + "s"
	case d%time.Millisecond == 0:
		return strconv.FormatInt(int64(d/time.Millisecond), 10) + "ms"
	}
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', -1, 64) + "ms"
}
