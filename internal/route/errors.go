package route

import (
	"errors"
	"strings"
)

// Refusals of [NormalPath]. Each of them means status 400: the path has more than one reading, and a rule that
// judged one of them would be bypassed by the other.
var (
	// ErrPathEscape is a percent sign without two hexadecimal digits, or an escaped NUL.
	ErrPathEscape = errors.New("path has a bad percent escape")
	// ErrPathSlash is an escaped slash or backslash where the entrypoint does not allow them.
	ErrPathSlash = errors.New("path has an encoded slash")
	// ErrPathByte is a raw byte that no path may contain: a control, a blank, a backslash, a question mark or a hash.
	ErrPathByte = errors.New("path has a forbidden byte")
	// ErrPathDots is a dot segment that only some backends would see: beside an encoded slash, or with a
	// parameter behind it ("/..;/").
	ErrPathDots = errors.New("path has a disguised dot segment")
	// ErrPathForm is a path that does not start with a slash and is not the asterisk of OPTIONS.
	ErrPathForm = errors.New("path does not start with a slash")
)

// ErrorCode tells kinds of rule errors apart. The values are stable.
type ErrorCode string

// The codes of an [Error].
const (
	CodeSyntax         ErrorCode = "rule_syntax"          // the text is not an expression
	CodeUnknownMatcher ErrorCode = "rule_unknown_matcher" // a name that is no matcher
	CodeArgumentCount  ErrorCode = "rule_argument_count"  // too many or too few arguments
	CodeBadArgument    ErrorCode = "rule_bad_argument"    // an argument that can never match, or does not compile
	CodeTooLarge       ErrorCode = "rule_too_large"       // text, nesting or number of matchers over the bound
)

// String returns the code itself.
func (c ErrorCode) String() string { return string(c) }

// Error is one fault in a rule text.
type Error struct {
	// Pos and Len are the place in bytes of the rule text; Pos+Len never passes its end. Len is 0 only for what is
	// missing at the end.
	Pos, Len int
	// Code is the stable kind.
	Code ErrorCode
	// Msg says what is wrong, without the suggestion. It never repeats the value of a Headers or Query matcher.
	Msg string
	// Suggest is the matcher that was probably meant, or empty.
	Suggest string
}

// Error returns the message, with the suggestion behind it.
func (e *Error) Error() string {
	if e.Suggest == "" {
		return e.Msg
	}
	return e.Msg + "; did you mean " + e.Suggest + "?"
}

// suggest finds the known matcher nearest to a name, or returns "": equal but for case, or at most two edits away.
func suggest(name string) string {
	best, bestDist := "", 3
	for _, s := range specs {
		if strings.EqualFold(name, s.name) {
			return s.name
		}
		if d := distance(strings.ToLower(name), strings.ToLower(s.name)); d < bestDist && d < len(s.name)-1 {
			best, bestDist = s.name, d
		}
	}
	return best
}

// distance counts the insertions, deletions, replacements and swaps of neighbours between two short texts.
func distance(a, b string) int {
	if len(a) > 32 {
		return len(a)
	}
	before, prev, cur := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		cur[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			cur[j] = min(prev[j]+1, cur[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				cur[j] = min(cur[j], before[j-2]+1)
			}
		}
		before, prev, cur = prev, cur, before
	}
	return prev[len(b)]
}
