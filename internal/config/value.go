package config

import (
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// maxFileValue bounds what file(...) reads.
const maxFileValue = 64 << 10

// text is a decoded string and where it came from.
type text struct {
	s  string
	at acl.Span
	// lit is the literal when s is exactly what was written; nil when it was computed by env(...) or file(...).
	lit    *acl.Value
	file   bool // read by file(...): secret
	secret bool // the key is secret
	ok     bool // false: absent, or not usable and reported
}

// quote is the value for a message: computed and secret ones are not repeated.
func (t text) quote() string {
	if t.lit == nil || t.secret {
		return "the given value"
	}
	s := t.s
	if len(s) > 80 {
		s = s[:77] + "..."
	}
	return strconv.Quote(s)
}

// bad reports a finding about a decoded string at its value.
func (d *decoder) bad(t text, code, format string, args ...any) *acl.Diagnostic {
	diag := d.fail(code, t.at, format, args...)
	diag.ShowValue = t.lit != nil && !t.secret
	return diag
}

// str returns a string key. An absent one is reported when it is required.
func (o *object) str(key string, required bool) text { return o.strOf(key, required, false) }

// secret returns a string key whose value must never be shown.
func (o *object) secret(key string, required bool) text { return o.strOf(key, required, true) }

func (o *object) strOf(key string, required, secret bool) text {
	f := o.take(key)
	if f == nil {
		if required {
			o.missing(key, "")
		}
		return text{at: o.where(key), secret: secret}
	}
	return o.d.stringOf(f.val, fmt.Sprintf("%s in %s", key, o.title), secret)
}

// stringOf decodes a value in a string position: a string, env(...) or file(...). what names it in messages.
func (d *decoder) stringOf(v *acl.Value, what string, secret bool) text {
	t := text{at: v.Span, secret: secret}
	switch v.Kind {
	case acl.String:
		t.s, t.lit, t.ok = v.Str, v, true
	case acl.Call:
		return d.call(v, what, t)
	case acl.Number:
		diag := d.fail(CodeType, v.Span, "%s must be a string, not a number", what)
		diag.Hint = "put it in double quotes"
	default:
		d.fail(CodeType, v.Span, "%s must be a string, not %s", what, article(v.Kind))
	}
	return t
}

// call evaluates env(...) and file(...).
func (d *decoder) call(v *acl.Value, what string, t text) text {
	switch v.Func {
	case "env":
		if len(v.Args) < 1 || len(v.Args) > 2 {
			d.fail(CodeEnv, v.Span, `env takes a variable and optionally a default: env("NAME", "default")`)
			return t
		}
		name := d.stringOf(v.Args[0], "the variable of env(...) for "+what, false)
		if !name.ok {
			return t
		}
		val, set := d.env(name.s)
		if set {
			t.s, t.ok = val, true
			return t
		}
		if len(v.Args) == 2 {
			def := d.stringOf(v.Args[1], "the default of env(...) for "+what, t.secret)
			t.s, t.ok, t.file = def.s, def.ok, def.file
			return t
		}
		variable := "the variable"
		if name.lit != nil {
			variable = "environment variable " + name.s
		}
		d.fail(CodeEnv, v.Span, "%s: %s is not set", what, variable).Hint = `set it, or give a default: env("NAME", "default")`
	case "file":
		if len(v.Args) != 1 {
			d.fail(CodeEnv, v.Span, `file takes one path: file("path")`)
			return t
		}
		path := d.stringOf(v.Args[0], "the path of file(...) for "+what, false)
		if !path.ok {
			return t
		}
		data, err := d.read(path.s)
		switch {
		case err != nil:
			d.fail(CodeEnv, v.Span, "%s: %s", what, readError(err))
			return t
		case len(data) > maxFileValue:
			d.fail(CodeEnv, v.Span, "%s: the file is larger than %d bytes", what, maxFileValue)
			return t
		}
		s := strings.TrimSuffix(string(data), "\n")
		t.s, t.ok, t.file = strings.TrimSuffix(s, "\r"), true, true
		if t.s != "" {
			d.hidden = append(d.hidden, t.s)
		}
	default:
		diag := d.fail(CodeType, v.Span, "%s: there is no function %s", what, v.Func)
		diag.Hint = `the functions are env("NAME"), env("NAME", "default") and file("path")`
		if c := v.Func[0]; c >= 'A' && c <= 'Z' { // a matcher
			diag.Hint = "a rule is one string, its arguments in backticks: rule = \"PathPrefix(`/v1`)\""
		}
	}
	return t
}

// list returns a list of strings: a list, or a single string, or nothing.
func (o *object) list(key string) []text { return o.listOf(key, false) }

// secrets returns a list of strings that must never be shown.
func (o *object) secrets(key string) []text { return o.listOf(key, true) }

func (o *object) listOf(key string, secret bool) []text {
	f := o.take(key)
	if f == nil {
		return nil
	}
	what := fmt.Sprintf("%s in %s", key, o.title)
	switch f.val.Kind {
	case acl.String, acl.Call:
		if t := o.d.stringOf(f.val, what, secret); t.ok {
			return []text{t}
		}
	case acl.List:
		out := make([]text, 0, len(f.val.List))
		for _, item := range f.val.List {
			if t := o.d.stringOf(item, "an item of "+what, secret); t.ok {
				out = append(out, t)
			}
		}
		return out
	default:
		o.d.fail(CodeType, f.val.Span, "%s must be a list of strings or one string, not %s", what, article(f.val.Kind))
	}
	return nil
}

// plain returns the texts only.
func plain(ts []text) []string {
	out := make([]string, 0, len(ts))
	for _, t := range ts {
		out = append(out, t.s)
	}
	return out
}

// boolean returns a bool key.
func (o *object) boolean(key string, def bool) bool {
	f := o.take(key)
	if f == nil {
		return def
	}
	if f.val.Kind != acl.Bool {
		diag := o.d.fail(CodeType, f.val.Span, "%s in %s must be true or false, not %s", key, o.title, article(f.val.Kind))
		if f.val.Kind == acl.String && (f.val.Str == "true" || f.val.Str == "false") {
			diag.Hint = "write " + f.val.Str + " without quotes"
		}
		return def
	}
	return f.val.Bool
}

// number returns an unsigned integer key between lo and hi, both included.
func (o *object) number(key string, def, lo, hi uint64) uint64 {
	f := o.take(key)
	if f == nil {
		return def
	}
	n := o.integer(f)
	if n == nil {
		return def
	}
	if !n.IsUint64() || n.Uint64() < lo || n.Uint64() > hi {
		msg := fmt.Sprintf("%s in %s must be between %d and %d", key, o.title, lo, hi)
		if hi == math.MaxUint64 || hi == math.MaxUint32 && lo > 0 {
			msg = fmt.Sprintf("%s in %s must be at least %d and at most %d", key, o.title, lo, hi)
		}
		o.d.fail(CodeRange, f.val.Span, "%s", msg)
		return def
	}
	return n.Uint64()
}

// count is number for values that fit an int.
func (o *object) count(key string, def, lo, hi int) int {
	return int(o.number(key, uint64(def), uint64(lo), uint64(hi))) // lo and hi are not negative, so it fits
}

// required is number for a key that must be written; it returns 0 and reports otherwise.
func (o *object) required(key string, lo, hi uint64) uint64 {
	n := o.number(key, 0, lo, hi)
	if !o.written(key) {
		o.missing(key, "")
	}
	return n
}

// written reports whether a key has a value other than null.
func (o *object) written(key string) bool {
	return slices.ContainsFunc(o.fields, func(f *field) bool { return f.key == key && f.val.Kind != acl.Null })
}

// hasValue is written for keys that may also be nested blocks.
func (o *object) hasValue(key string) bool {
	return o.written(key) || slices.ContainsFunc(o.blocks, func(c *child) bool { return c.block.Name == key })
}

// integer returns the exact integer of a field, or reports and returns nil.
func (o *object) integer(f *field) *big.Int {
	v := f.val
	switch {
	case v.Kind != acl.Number:
		diag := o.d.fail(CodeType, v.Span, "%s in %s must be a whole number, not %s", f.key, o.title, article(v.Kind))
		if v.Kind == acl.String {
			if _, err := strconv.ParseInt(v.Str, 10, 64); err == nil {
				diag.Hint = "write it without quotes"
			}
		}
		return nil
	case !v.IsInt:
		o.d.fail(CodeType, v.Span, "%s in %s must be a whole number", f.key, o.title)
		return nil
	case v.Big != nil:
		return v.Big
	}
	return big.NewInt(v.Int)
}

// signed returns a 32-bit signed integer key.
func (o *object) signed(key string, def int) int {
	f := o.take(key)
	if f == nil {
		return def
	}
	n := o.integer(f)
	if n == nil {
		return def
	}
	if !n.IsInt64() || n.Int64() < math.MinInt32 || n.Int64() > math.MaxInt32 {
		o.d.fail(CodeRange, f.val.Span, "%s in %s must be between %d and %d", key, o.title, math.MinInt32, math.MaxInt32)
		return def
	}
	return int(n.Int64())
}

// float returns a number key for which ok holds.
func (o *object) float(key string, def float64, rule string, ok func(float64) bool) float64 {
	f := o.take(key)
	if f == nil {
		return def
	}
	if f.val.Kind != acl.Number {
		o.d.fail(CodeType, f.val.Span, "%s in %s must be a number, not %s", key, o.title, article(f.val.Kind))
		return def
	}
	if !ok(f.val.Float) {
		o.d.fail(CodeRange, f.val.Span, "%s in %s must be %s", key, o.title, rule)
		return def
	}
	return f.val.Float
}

// seconds returns an integer key that counts seconds.
func (o *object) seconds(key string, def, lo uint64) time.Duration {
	return time.Duration(o.number(key, def, lo, maxSeconds)) * time.Second
}

// millis returns an integer key that counts milliseconds.
func (o *object) millis(key string, def, lo uint64) time.Duration {
	return time.Duration(o.number(key, def, lo, maxSeconds*1000)) * time.Millisecond
}

// duration returns a duration key: text with units, or a bare number of seconds. It must be greater than zero.
func (o *object) duration(key string, def time.Duration) time.Duration {
	f := o.take(key)
	if f == nil {
		return def
	}
	what := fmt.Sprintf("%s in %s", key, o.title)
	var d time.Duration
	var why string
	t := text{at: f.val.Span}
	if f.val.Kind == acl.Number {
		d, why = secondsOf(f.val)
	} else {
		if f.val.Kind != acl.String && f.val.Kind != acl.Call {
			o.d.fail(CodeType, f.val.Span, `%s must be a duration such as "30s", not %s`, what, article(f.val.Kind))
			return def
		}
		if t = o.d.stringOf(f.val, what, false); !t.ok {
			return def
		}
		d, why = parseDuration(t.s)
	}
	if why == "" && d <= 0 {
		why = "must be greater than zero"
	}
	if why != "" {
		diag := o.d.bad(t, CodeRange, "%s %s", what, why)
		diag.Hint = `write numbers with units ms, s, m or h, such as "250ms", "30s" or "1h30m"; no unit means seconds`
		return def
	}
	return d
}

// enum returns a key that is one of the words.
func enum[T ~string](o *object, key string, def T, words ...T) (T, text) {
	t := o.str(key, false)
	if !t.ok {
		return def, t
	}
	for _, w := range words {
		if string(w) == t.s {
			return w, t
		}
	}
	names := make([]string, len(words))
	for i, w := range words {
		names[i] = string(w)
	}
	diag := o.d.bad(t, CodeEnum, "%s in %s must be one of %s, not %s", key, o.title, strings.Join(names, ", "), t.quote())
	near := acl.Suggest(t.s, names)
	switch {
	case near != "":
		diag.Hint = "did you mean " + strconv.Quote(near) + "?"
	case t.lit != nil && t.lit.Bare:
		diag.Hint = "put the word in double quotes"
	}
	t.ok = false
	return def, t
}

// keyText is a key or label as a text: it is always literal.
func keyText(s string, at acl.Span) text {
	return text{s: s, at: at, lit: &acl.Value{}, ok: true}
}

// sortedKeys returns the names of a map in byte order.
func sortedKeys[T any](m map[string]T) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// quoteSome lists the first names, quoted.
func quoteSome(names []string) string {
	const most = 8
	quoted := make([]string, 0, most)
	for _, n := range names[:min(most, len(names))] {
		quoted = append(quoted, strconv.Quote(n))
	}
	s := strings.Join(quoted, ", ")
	if len(names) > most {
		s += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return s
}
