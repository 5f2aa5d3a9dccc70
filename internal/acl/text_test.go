package acl_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// Every decoded byte maps to the place in the source that a plain walk over the
// literal finds.
func TestStringOffset(t *testing.T) {
	literals := []string{
		`"plain"`, `""`, `"é☃𝄞x"`, `"a\nb\"c\\d\qe"`, `'a\'b\nc\\d'`, `"\\\\n"`, `bare`, `größe`, `'\\x'`, `"\"` + "`x`" + `\""`, `'\\\'x'`,
	}
	for _, lit := range literals {
		src := "ü = 1\n  k = " + lit
		doc, ds := acl.Parse("in.acl", []byte(src))
		if len(ds) > 0 {
			t.Fatalf("%s: %v", lit, ds)
		}
		v := doc.Attr("k").Value
		places := walk(lit)
		if want := len(v.Str) + 1; len(places) != want {
			t.Fatalf("%s decodes to %d bytes, the walk found %d", lit, want-1, len(places)-1)
		}
		for i, byteOffset := range places {
			want := acl.Pos{
				Line: 2, Col: utf8.RuneCountInString("  k = "+lit[:byteOffset]) + 1,
				Offset: strings.LastIndex(src, lit) + byteOffset,
			}
			if got := v.StringOffset(i); got != want {
				t.Errorf("%s, byte %d: got %v, want %v", lit, i, got, want)
			}
		}
		if v.StringOffset(-1) != v.StringOffset(0) || v.StringOffset(1<<30) != v.StringOffset(len(v.Str)) {
			t.Errorf("%s: offsets out of range are not moved to the ends", lit)
		}
	}
	doc, _ := acl.Parse("in.acl", []byte("k = [1]"))
	if v := doc.Attr("k").Value; v.StringOffset(3) != v.Span.Start {
		t.Error("a list has no offsets")
	}
}

// walk returns, for each decoded byte of a literal and for its end, the offset
// in the literal of the character or escape it comes from.
func walk(lit string) (places []int) {
	quote := lit[0]
	i, end := 1, len(lit)-1
	if quote != '"' && quote != '\'' {
		i, end = 0, len(lit)
	}
	escapes := map[byte]string{'"': `nrt\"`, '\'': `'`}[quote]
	for i < end {
		if lit[i] == '\\' && strings.IndexByte(escapes, lit[i+1]) >= 0 {
			places = append(places, i)
			i += 2
			continue
		}
		_, size := utf8.DecodeRuneInString(lit[i:])
		for range size {
			places = append(places, i)
		}
		i += size
	}
	return append(places, end)
}

func TestStrings(t *testing.T) {
	for lit, want := range map[string]string{
		`"\n\r\t\\\""`: "\n\r\t\\\"", `"\q\'\x41"`: `\q\'\x41`, `"\\n"`: `\n`, `"\\\\"`: `\\`, `"\\\""`: `\"`, `"a'b"`: "a'b",
		`'\''`: "'", `'\n\\x'`: `\n\\x`, `'\\\''`: `\\'`, `'a"b'`: `a"b`, "\"`a` { # // }\"": "`a` { # // }",
		"\"tab\there\"": "tab\there",
	} {
		doc, ds := acl.Parse("in.acl", []byte("k = "+lit+"\nafter = 1"))
		if len(ds) > 0 {
			t.Errorf("%s: %v", lit, ds)
			continue
		}
		if v := doc.Attr("k").Value; v.Str != want || v.Text != lit || v.Quote != lit[0] {
			t.Errorf("%s: got %q", lit, v.Str)
		}
	}
}

func TestSuggest(t *testing.T) {
	keys := []string{"address", "protocol", "tls", "url", "request_timeout", "stream_idle_timeout", "stream_total_timeout", "id"}
	for word, want := range map[string]string{
		"adress": "address", "addresss": "address", "adderss": "address", "Address": "address", "ADRESS": "address",
		"request-timeout": "request_timeout", "requesttimeout": "request_timeout", "reqest_timeuot": "request_timeout",
		"stream_idel_timeout": "stream_idle_timeout", "tsl": "tls", "uri": "url", "ip": "", "x": "", "": "", "prtcl": "",
		"protocols": "protocol", "completely_else": "", "address": "", "ID": "id", strings.Repeat("a", 100): "",
	} {
		if got := acl.Suggest(word, keys); got != want {
			t.Errorf("%q: got %q, want %q", word, got, want)
		}
	}
	if got := acl.Suggest("cat", []string{"bat", "hat"}); got != "bat" {
		t.Errorf("of equally near ones got %q", got)
	}
	if got := acl.Suggest("routr", []string{"routes", "router"}); got != "router" {
		t.Errorf("of several got %q", got)
	}
}

func TestDiagnosticsAreAnError(t *testing.T) {
	at := func(file string, offset int) acl.Span {
		return acl.Span{File: file, Start: acl.Pos{Line: 1, Col: offset + 1, Offset: offset}}
	}
	ds := acl.Diagnostics{
		{Code: acl.CodeTruncated, Message: "5", Severity: acl.Warning},
		{Span: at("b", 1), Message: "4", Severity: acl.Warning},
		{Span: at("a", 7), Code: "y", Message: "3", Severity: acl.Warning},
		{Span: at("a", 7), Code: "x", Message: "2", Severity: acl.Warning},
		{Span: acl.Span{File: "a"}, Message: "1", Severity: acl.Warning},
	}
	ds.Sort()
	if got, want := ds.Error(), "a: 1\na:1:8: 2\na:1:8: 3\nb:1:2: 4\n5"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if ds.HasErrors() || ds.Err() != nil || acl.Diagnostics(nil).Err() != nil {
		t.Error("warnings are no error")
	}
	broken := append(slices.Clone(ds), &acl.Diagnostic{Message: "6"})
	var target acl.Diagnostics
	if !errors.As(broken.Err(), &target) || len(target) != 6 {
		t.Error("an error that cannot be found again")
	}
}

func TestTreeLookups(t *testing.T) {
	doc, ds := acl.Parse("in.acl", []byte("a = 1\nx { b = 2; y { c = 3 } y {} }"))
	if len(ds) > 0 {
		t.Fatal(ds)
	}
	x := doc.Blocks[0]
	if doc.Attr("a").Value.Int != 1 || x.Attr("b").Value.Int != 2 || x.Child("y") != x.Blocks[0] {
		t.Error("wrong ones found")
	}
	if doc.Attr("b") != nil || x.Attr("a") != nil || x.Child("z") != nil {
		t.Error("found what is not there")
	}
	for k := acl.String; k <= acl.Call; k++ {
		if k.String() == "" || k.String() == "invalid" {
			t.Errorf("kind %d has no name", k)
		}
	}
	if acl.Kind(0).String() != "invalid" || acl.Kind(99).String() != "invalid" {
		t.Error("a kind that is none has a name")
	}
}
