package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// decoder holds what one Load needs everywhere: the outside world, and the findings so far.
type decoder struct {
	env    func(string) (string, bool)
	read   func(string) ([]byte, error)
	diags  acl.Diagnostics
	warns  acl.Diagnostics // kept apart: too many of them must not refuse a configuration
	broken bool            // some file has a syntax error: do not complain of what may merely be unread
	hidden []string        // values read by file(...)
	seen   func(kind, key string)

	registered []string // middlewares of the embedding program
}

// fail adds an error at a place and returns it, so that the caller may add a hint.
func (d *decoder) fail(code string, at acl.Span, format string, args ...any) *acl.Diagnostic {
	diag := &acl.Diagnostic{Code: code, Message: fmt.Sprintf(format, args...), Span: at}
	d.diags.Add(diag)
	return diag
}

// warn adds a warning at a place.
func (d *decoder) warn(code string, at acl.Span, format string, args ...any) *acl.Diagnostic {
	diag := &acl.Diagnostic{Severity: acl.Warning, Code: code, Message: fmt.Sprintf(format, args...), Span: at}
	d.warns = append(d.warns, diag)
	return diag
}

// maxWarnings are listed; the rest is counted.
const maxWarnings = 20

// findings returns the errors and the first warnings, sorted.
func (d *decoder) findings() acl.Diagnostics {
	d.warns.Sort()
	all := d.diags
	for _, w := range d.warns[:min(len(d.warns), maxWarnings)] {
		all.Add(w)
	}
	if more := len(d.warns) - maxWarnings; more > 0 {
		all.Add(&acl.Diagnostic{Severity: acl.Warning, Code: WarnMore, Message: fmt.Sprintf("and %d more warnings", more)})
	}
	all.Sort()
	return all
}

// later refuses something this release does not run; have says what it runs instead.
func (d *decoder) later(at acl.Span, what, have string) {
	d.fail(CodeUnsupported, at, "%s not supported in this release", what).Hint = have
}

// field is one `key = value`, from a block or from an object value.
type field struct {
	key     string
	keySpan acl.Span
	val     *acl.Value
	known   bool
	// reported says that the value was taken away with a finding of its own.
	reported bool
}

// object is one block, or one object value that stands for a block, while it is decoded. It remembers which keys
// were asked for; finish reports the others. The getters return the default, and report, when a value is not usable.
type object struct {
	d      *decoder
	kind   string   // names the set of keys, as in the documentation: "load_balancer", "middlewares rate-limit"
	title  string   // for messages: `services "api"`
	at     acl.Span // where a missing key is reported: the name of the block
	labels []acl.Label
	fields []*field
	blocks []*child
	keys   []string // every key and block name asked for
}

// child is a nested block that nobody has asked for yet.
type child struct {
	block *acl.Block
	known bool
}

// fromBlock wraps a block; kind is its name until its reader sets another.
func (d *decoder) fromBlock(b *acl.Block) *object {
	o := &object{d: d, kind: b.Name, title: b.Name, at: b.NameSpan, labels: b.Labels}
	for _, a := range b.Attrs {
		o.fields = append(o.fields, &field{key: a.Key, keySpan: a.KeySpan, val: a.Value})
	}
	for _, c := range b.Blocks {
		o.blocks = append(o.blocks, &child{block: c})
	}
	return o
}

// fromObject wraps an object value that stands where a block is expected.
func (d *decoder) fromObject(name string, at acl.Span, v *acl.Value) *object {
	o := &object{d: d, kind: name, title: name, at: at}
	for _, p := range v.Pairs {
		o.fields = append(o.fields, &field{key: p.Key, keySpan: p.KeySpan, val: p.Value})
	}
	return o
}

// use notes that a key or block name belongs to this kind of object.
func (o *object) use(key string) {
	if !slices.Contains(o.keys, key) {
		o.keys = append(o.keys, key)
	}
	if o.d.seen != nil {
		o.d.seen(o.kind, key)
	}
}

// take returns the field of that key, or nil when it is absent or null. Every getter goes through it. A nested block
// of that name is reported: the key is a value.
func (o *object) take(key string) *field {
	o.use(key)
	for _, c := range o.blocks {
		if c.block.Name == key && !c.known {
			c.known = true
			o.d.fail(CodeType, c.block.NameSpan, "%s in %s is a value, not a block", key, o.title).Hint =
				"write " + key + " = …"
		}
	}
	for _, f := range o.fields {
		if f.key == key {
			f.known = true
			if f.val.Kind == acl.Null {
				return nil
			}
			return f
		}
	}
	return nil
}

// has reports whether the key or block is written, even as null, and does not mark it as known.
func (o *object) has(key string) bool {
	return slices.ContainsFunc(o.fields, func(f *field) bool { return f.key == key }) ||
		slices.ContainsFunc(o.blocks, func(c *child) bool { return c.block.Name == key })
}

// where is the place of a written key, for findings about it; the place of the object when it is absent.
func (o *object) where(key string) acl.Span {
	for _, f := range o.fields {
		if f.key == key {
			return f.keySpan
		}
	}
	for _, c := range o.blocks {
		if c.block.Name == key {
			return c.block.NameSpan
		}
	}
	return o.at
}

// missing reports a required key, unless it has a finding already, or the file is broken and it may merely be unread.
func (o *object) missing(key, hint string) {
	reported := slices.ContainsFunc(o.fields, func(f *field) bool { return f.key == key && f.reported })
	if !o.d.broken && !reported {
		o.d.fail(CodeMissing, o.at, "%s in %s is required", key, o.title).Hint = hint
	}
}

// children returns every nested block of those names, and every object (or list of objects) given as an attribute,
// attributes first. The names are of one thing, the canonical one first.
func (o *object) children(names ...string) []*object {
	var out []*object
	for _, name := range names {
		o.use(name)
	}
	for _, f := range o.fields {
		if !slices.Contains(names, f.key) {
			continue
		}
		f.known = true
		switch f.val.Kind {
		case acl.Null:
		case acl.Object:
			out = append(out, o.d.fromObject(names[0], f.keySpan, f.val))
		case acl.List:
			for _, item := range f.val.List {
				if item.Kind != acl.Object {
					o.d.fail(CodeType, item.Span, "items of %s in %s must be objects, not %s", f.key, o.title, article(item.Kind))
					continue
				}
				out = append(out, o.d.fromObject(names[0], item.Span, item))
			}
		default:
			o.d.fail(CodeType, f.val.Span, "%s in %s must be a block or an object, not %s", f.key, o.title, article(f.val.Kind)).Hint =
				"write " + f.key + " { … }"
		}
	}
	for _, c := range o.blocks {
		if slices.Contains(names, c.block.Name) {
			c.known = true
			out = append(out, o.d.fromBlock(c.block))
		}
	}
	for _, c := range out {
		c.kind, c.title = names[0], names[0]+" of "+o.title
		if o.kind == topLevel {
			c.title = names[0]
		}
	}
	return out
}

// child returns the one nested block of that name, or nil. A second one, or a label, is reported.
func (o *object) child(name string) *object {
	for _, f := range o.fields {
		if f.key == name && f.val.Kind == acl.List {
			f.known = true
			o.use(name)
			o.d.fail(CodeType, f.val.Span, "%s in %s must be one block, not a list", name, o.title)
			return nil
		}
	}
	all := o.children(name)
	if len(all) == 0 {
		return nil
	}
	for _, extra := range all[1:] {
		o.d.fail(CodeDuplicate, extra.at, "%s is already set at %s", extra.title, all[0].at)
		extra.noLabels()
	}
	all[0].noLabels()
	return all[0]
}

// noLabels reports labels on a block that takes none.
func (o *object) noLabels() {
	for _, l := range o.labels {
		o.d.fail(CodeLabel, l.Span, "%s takes no label", o.title)
	}
}

// name returns the name of a named object: its label, else its name attribute. Without one it reports and returns
// false. It also puts the name into the title.
func (o *object) name() (string, acl.Span, bool) {
	what := o.title
	var name string
	var at acl.Span
	switch {
	case len(o.labels) > 0:
		name, at = o.labels[0].Text, o.labels[0].Span
		for _, l := range o.labels[1:] {
			o.d.fail(CodeLabel, l.Span, "%s takes one label, its name", what)
		}
		if o.has("name") {
			f := o.take("name")
			o.d.fail(CodeDuplicate, o.where("name"), "%s is named twice, by its label and by name", what)
			_ = f
		}
	default:
		t := o.str("name", false)
		if !t.ok {
			if !o.has("name") {
				o.d.fail(CodeMissing, o.at, "%s needs a name", what).Hint = "write " + o.kind + ` "name" { … }`
			}
			return "", o.at, false
		}
		name, at = t.s, t.at
	}
	if msg := badName(name); msg != "" {
		o.d.fail(CodeValue, at, "the name of %s %s", what, msg)
		return "", at, false
	}
	o.title = fmt.Sprintf("%s %s", what, strconv.Quote(name))
	return name, at, true
}

// badName says what is wrong with a name, or "". Names end up in logs, metric labels and paths.
func badName(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > 255:
		return "is longer than 255 bytes"
	case strings.TrimSpace(name) != name:
		return "has blanks around it"
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "contains a control character"
	}
	return ""
}

// finish reports every key and block that nobody asked for. other, when set, may explain a key in its own way and
// returns true if it did.
func (o *object) finish(other func(key string, at acl.Span) bool) {
	for _, f := range o.fields {
		if !f.known && (other == nil || !other(f.key, f.keySpan)) {
			o.unknown(CodeUnknownKey, "key", f.key, f.keySpan)
		}
	}
	for _, c := range o.blocks {
		if !c.known && (other == nil || !other(c.block.Name, c.block.NameSpan)) {
			o.unknown(CodeUnknownBlock, "block", c.block.Name, c.block.NameSpan)
		}
	}
}

func (o *object) unknown(code, what, name string, at acl.Span) {
	diag := o.d.fail(code, at, "unknown %s %s in %s", what, name, o.title)
	switch near := acl.Suggest(name, o.keys); {
	case near != "":
		diag.Hint = "did you mean " + near + "?"
	case o.longer(name) != "":
		diag.Hint = "did you mean " + o.longer(name) + "?"
	case len(o.keys) == 0:
		diag.Hint = o.title + " has no keys"
	default:
		known := slices.Clone(o.keys)
		slices.Sort(known)
		diag.Hint = "known here: " + strings.Join(known, ", ")
	}
}

// longer returns the known key that begins with name, as when a unit or "_enabled" was left off.
func (o *object) longer(name string) string {
	i := slices.IndexFunc(o.keys, func(k string) bool { return len(name) >= 4 && strings.HasPrefix(k, name+"_") })
	if i < 0 {
		return ""
	}
	return o.keys[i]
}

// article is the name of a kind with its article, for messages.
func article(k acl.Kind) string {
	if k == acl.Object {
		return "an object"
	}
	return "a " + k.String()
}
