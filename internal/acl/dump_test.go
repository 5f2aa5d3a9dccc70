package acl_test

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// dumper writes a tree as text: with spans for the goldens, without for
// comparing the structure of two trees.
type dumper struct {
	w     io.Writer
	spans bool
}

func dump(doc *acl.Document, spans bool) string {
	var sb strings.Builder
	d := dumper{&sb, spans}
	for _, a := range doc.Attrs {
		d.attr(0, a)
	}
	for _, b := range doc.Blocks {
		d.block(0, b)
	}
	return sb.String()
}

func (d dumper) line(depth int, at acl.Span, format string, args ...any) {
	fmt.Fprintf(d.w, "%s%s", strings.Repeat("  ", depth), fmt.Sprintf(format, args...))
	if d.spans {
		fmt.Fprintf(d.w, " @%d:%d-%d:%d", at.Start.Line, at.Start.Col, at.End.Line, at.End.Col)
	}
	fmt.Fprintln(d.w)
}

func (d dumper) block(depth int, b *acl.Block) {
	d.line(depth, b.Span, "block %s", b.Name)
	for _, l := range b.Labels {
		d.line(depth+1, l.Span, "label %q", l.Text)
	}
	for _, a := range b.Attrs {
		d.attr(depth+1, a)
	}
	for _, c := range b.Blocks {
		d.block(depth+1, c)
	}
}

func (d dumper) attr(depth int, a *acl.Attr) {
	d.line(depth, a.KeySpan, "attr %s", a.Key)
	d.value(depth+1, a.Value)
}

func (d dumper) value(depth int, v *acl.Value) {
	switch v.Kind {
	case acl.String:
		quote := "bare"
		if !v.Bare {
			quote = string(v.Quote)
		}
		d.line(depth, v.Span, "string %s %q", quote, v.Str)
	case acl.Number:
		d.line(depth, v.Span, "number %s %s", v.Text, numberText(v))
	case acl.Bool:
		d.line(depth, v.Span, "bool %t", v.Bool)
	case acl.Null:
		d.line(depth, v.Span, "null")
	case acl.List:
		d.line(depth, v.Span, "list")
		for _, item := range v.List {
			d.value(depth+1, item)
		}
	case acl.Object:
		d.line(depth, v.Span, "object")
		for _, p := range v.Pairs {
			d.line(depth+1, p.KeySpan, "pair %q", p.Key)
			d.value(depth+2, p.Value)
		}
	case acl.Call:
		d.line(depth, v.Span, "call %s", v.Func)
		for _, a := range v.Args {
			d.value(depth+1, a)
		}
	default:
		panic("value without a kind")
	}
}

func numberText(v *acl.Value) string {
	switch {
	case v.Big != nil:
		return "big " + v.Big.String()
	case v.IsInt:
		return "int " + strconv.FormatInt(v.Int, 10)
	}
	return "float " + strconv.FormatFloat(v.Float, 'g', -1, 64)
}

func list(ds acl.Diagnostics) string {
	var sb strings.Builder
	for _, d := range ds {
		fmt.Fprintf(&sb, "%d:%d-%d:%d (%d-%d) %s: %s\n", d.Span.Start.Line, d.Span.Start.Col,
			d.Span.End.Line, d.Span.End.Col, d.Span.Start.Offset, d.Span.End.Offset, d.Code, d.Message)
		if d.Hint != "" {
			fmt.Fprintf(&sb, "  hint: %s\n", d.Hint)
		}
	}
	return sb.String()
}
