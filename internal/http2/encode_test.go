package http2_test

import (
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"

	"github.com/sluice-proxy/sluice/internal/http2"
)

// decoded is a field block as "name: value" lines.
func decoded(t *testing.T, block []byte) (lines []string) {
	t.Helper()
	fields, err := hpack.NewDecoder(4096, nil).DecodeFull(block)
	if err != nil {
		t.Fatalf("%x: %v", block, err)
	}
	for _, f := range fields {
		lines = append(lines, f.Name+": "+f.Value)
	}
	return lines
}

// Names of the static table go out as their index, all others as they are, in lower case.
func TestFieldNames(t *testing.T) {
	const last = 61
	indexed := make(map[string]bool)
	for i := byte(1); i <= last; i++ {
		f, err := hpack.NewDecoder(4096, nil).DecodeFull([]byte{0x80 | i})
		if err != nil {
			t.Fatal(err)
		}
		indexed[f[0].Name] = true
	}
	names := []string{"x", "x-request-id", "agf", "user-agenu", strings.Repeat("a", 27), strings.Repeat("a", 28), strings.Repeat("a", 300)}
	for name := range indexed {
		if name[0] != ':' && name != "host" && name != "transfer-encoding" { // which are never sent
			names = append(names, name)
		}
	}
	for _, name := range names {
		for _, spelt := range []string{name, strings.ToUpper(name)} {
			b := http2.AppendField(nil, []byte(spelt), []byte("v"))
			if got := decoded(t, b); len(got) != 1 || got[0] != name+": v" {
				t.Errorf("%s: %q", spelt, got)
			}
			if short := len(b) <= 4; short != indexed[name] {
				t.Errorf("%s takes %d bytes", spelt, len(b))
			}
		}
	}
}

// What a request head says in the form of HTTP/1.1 is what goes to the backend.
func TestRequestHead(t *testing.T) {
	head := "GET /a?b=%20c HTTP/1.1\r\nHost: h.test:8\r\nX-Blank:\t two words \t \r\nx-none:\r\nX-Colon: a:b\r\nconnection: close\r\n" +
		"TE: trailers\r\nhost: again\r\nContent-Length: 5\r\n\r\n"
	want := []string{
		":method: GET", ":scheme: https", ":path: /a?b=%20c", ":authority: h.test:8", "x-blank: two words", "x-none: ", "x-colon: a:b",
		"te: trailers", "content-length: 5",
	}
	if got := decoded(t, http2.AppendRequest([]byte(head))); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}
