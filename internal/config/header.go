package config

import (
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// refusedHeaders are fields that carry the framing and the hops; setting one would break the message, so the reason
// is given instead. They are refused in both directions.
var refusedHeaders = map[string]string{
	"connection":          "names the fields of one hop, and the gateway writes it",
	"content-length":      "is the length of the body, which a policy cannot change",
	"keep-alive":          "belongs to one hop",
	"proxy-authenticate":  "belongs to one hop",
	"proxy-authorization": "belongs to one hop",
	"proxy-connection":    "belongs to one hop",
	"te":                  "belongs to one hop",
	"trailer":             "announces trailers, which a policy cannot add",
	"transfer-encoding":   "frames the body, and the gateway writes it",
	"upgrade":             "belongs to one hop",
}

// badHeader says why a field may not be set, or "".
func badHeader(name string, response bool) string {
	if !isToken(name) {
		return "is not a legal field name"
	}
	lower := strings.ToLower(name)
	if why := refusedHeaders[lower]; why != "" {
		return "cannot be set: it " + why
	}
	if lower == "host" && response {
		return "cannot be set: it is a field of requests"
	}
	return ""
}

// isToken is the token of RFC 9110 section 5.6.2.
func isToken(s string) bool {
	if s == "" || len(s) > 256 {
		return false
	}
	for _, c := range []byte(s) {
		if !isAlnum(c) && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return true
}

// badHeaderValue says why a value may not be sent (RFC 9110 section 5.5), or "".
func badHeaderValue(v string) string {
	if strings.Trim(v, " \t") != v {
		return "has blanks around it"
	}
	for _, c := range []byte(v) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return "contains a control character"
		}
	}
	return ""
}

// headerMap decodes a map of fields in its three forms: an object, a list of objects with name (or key, or header)
// and value, and a block whose children carry a label (or name, key, header) and a value. Of equal names, whatever
// their case, the later wins.
func (o *object) headerMap(key string, response bool) []HeaderValue {
	o.use(key)
	m := &headerMap{d: o.d, what: key + " in " + o.title, response: response}
	for _, f := range o.fields {
		if f.key != key {
			continue
		}
		f.known = true
		switch f.val.Kind {
		case acl.Null:
		case acl.Object:
			for _, p := range f.val.Pairs {
				m.set(keyText(p.Key, p.KeySpan), m.value(p.Key, p.Value))
			}
		case acl.List:
			for _, item := range f.val.List {
				if item.Kind != acl.Object {
					o.d.fail(CodeType, item.Span, "items of %s must be objects with name and value, not %s", m.what, article(item.Kind))
					continue
				}
				m.item(o.d.fromObject("header", item.Span, item))
			}
		default:
			o.d.fail(CodeType, f.val.Span, "%s must be an object, a list of objects or a block, not %s", m.what, article(f.val.Kind)).Hint =
				"write " + key + ` = { "Name" = "value" }`
		}
	}
	for _, c := range o.blocks {
		if c.block.Name == key {
			c.known = true
			m.group(o.d.fromBlock(c.block))
		}
	}
	return m.out
}

type headerMap struct {
	d        *decoder
	what     string
	response bool
	out      []HeaderValue
}

// group reads the block form. Plain attributes in it are taken as in the object form.
func (m *headerMap) group(o *object) {
	o.title = m.what
	o.noLabels()
	for _, f := range o.fields {
		f.known = true
		m.set(keyText(f.key, f.keySpan), m.value(f.key, f.val))
	}
	for _, c := range o.blocks {
		c.known = true
		m.item(m.d.fromBlock(c.block))
	}
}

// item reads one object or child block with a name and a value.
func (m *headerMap) item(o *object) {
	o.kind, o.title = "header", "an item of "+m.what
	var name text
	if len(o.labels) > 0 {
		name = keyText(o.labels[0].Text, o.labels[0].Span)
		for _, l := range o.labels[1:] {
			m.d.fail(CodeLabel, l.Span, "%s takes one label, the name of the field", o.title)
		}
	}
	for _, key := range []string{"name", "key", "header"} {
		t := o.str(key, false)
		if !t.ok {
			continue
		}
		if name.ok {
			m.d.bad(t, CodeDuplicate, "%s is named twice", o.title)
			continue
		}
		name = t
	}
	if !name.ok {
		o.missing("name", `write name = "X-Name", value = "…"`)
	}
	o.use("value")
	i := slices.IndexFunc(o.fields, func(f *field) bool { return f.key == "value" })
	if i < 0 || o.fields[i].val.Kind == acl.Null {
		o.missing("value", "")
	} else {
		o.fields[i].known = true
		m.set(name, m.value(name.s, o.fields[i].val))
	}
	o.finish(nil)
}

// value decodes the value of a field. Credentials are secret, whoever wrote them.
func (m *headerMap) value(name string, v *acl.Value) text {
	if v.Kind == acl.Null {
		return text{}
	}
	t := m.d.stringOf(v, "the value of a field of "+m.what, carriesCredential(name))
	t.secret = t.secret || t.lit == nil
	return t
}

func (m *headerMap) set(name, value text) {
	if !name.ok || !value.ok {
		return
	}
	if why := badHeader(name.s, m.response); why != "" {
		m.d.bad(name, CodeValue, "%s: %s %s", m.what, name.quote(), why)
		return
	}
	if why := badHeaderValue(value.s); why != "" {
		m.d.bad(value, CodeValue, "%s: the value of %s %s", m.what, name.quote(), why)
		return
	}
	m.out = slices.DeleteFunc(m.out, func(h HeaderValue) bool { return strings.EqualFold(h.Name, name.s) })
	m.out = append(m.out, HeaderValue{Name: name.s, Value: value.s, Secret: value.secret})
}
