package exchange_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// model is Fields as a plain list: what every operation must amount to.
type model [][2]string

func (m *model) add(name, value string) { *m = append(*m, [2]string{name, value}) }

func (m *model) del(name string) {
	*m = slices.DeleteFunc(*m, func(l [2]string) bool { return strings.EqualFold(l[0], name) })
}

func (m model) text() string {
	var b strings.Builder
	for _, l := range m {
		fmt.Fprintf(&b, "%s: %s\r\n", l[0], l[1])
	}
	return b.String()
}

func (m *model) strip() {
	kept := []string{
		"host", "content-length", "transfer-encoding", "connection", "forwarded", "x-forwarded-for", "x-forwarded-host",
		"x-forwarded-proto", "x-forwarded-port", "x-real-ip", "x-request-id", "close", "keep-alive",
	}
	gone := []string{
		"connection", "transfer-encoding", "te", "trailer", "trailers", "upgrade", "keep-alive", "proxy-connection",
		"proxy-authenticate", "proxy-authorization", "http2-settings",
	}
	for _, l := range *m {
		if strings.EqualFold(l[0], "connection") {
			for tok := range strings.SplitSeq(l[1], ",") {
				if tok = strings.ToLower(strings.Trim(tok, " \t")); tok != "" && !slices.Contains(kept, tok) {
					gone = append(gone, tok)
				}
			}
		}
	}
	*m = slices.DeleteFunc(*m, func(l [2]string) bool { return slices.Contains(gone, strings.ToLower(l[0])) })
}

// received makes Fields as an engine does: lines in a block, behind a start line.
func received(m model) *exchange.Fields {
	block := []byte("GET / HTTP/1.1\r\n")
	f := new(exchange.Fields)
	f.Reset(nil)
	for _, l := range m {
		start := len(block)
		block = append(block, l[0]+": "+l[1]+"\r\n"...)
		value := start + len(l[0]) + 2
		f.AppendLine(exchange.RawLine{
			Start: start, NameEnd: start + len(l[0]), Value: value, ValueEnd: value + len(l[1]), End: len(block),
			ID: exchange.KnownField([]byte(l[0])),
		})
	}
	f.Rebase(block)
	return f
}

var fieldNames = []string{
	"Host", "connection", "X-A", "x-a", "X-B", "Content-Length", "TE", "Upgrade", "X-Forwarded-For", "Keep-Alive",
	"X_Real_IP", "Cookie", "Set-Cookie", "trailers", "HTTP2-Settings",
}

var fieldValues = []string{"", "1", "X-A", "close, x-b", "Host, X-A ,, Cookie", "keep-alive, Upgrade, HTTP2-Settings", "a b\tc"}

// FuzzFields plays operations on Fields and on the model.
func FuzzFields(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3}, []byte{0, 1, 2, 1, 2, 3, 2, 0, 0, 3, 0, 0})
	f.Add([]byte{1, 4, 2, 1, 1, 0}, []byte{3, 0, 0, 0, 2, 2, 1, 3, 3})
	f.Fuzz(func(t *testing.T, lines, ops []byte) {
		if len(lines) > 60 || len(ops) > 60 {
			return
		}
		var m model
		for i := 0; i+1 < len(lines); i += 2 {
			m.add(fieldNames[int(lines[i])%len(fieldNames)], fieldValues[int(lines[i+1])%len(fieldValues)])
		}
		fields := received(m)
		for i := 0; i+2 < len(ops); i += 3 {
			name, value := fieldNames[int(ops[i+1])%len(fieldNames)], fieldValues[int(ops[i+2])%len(fieldValues)]
			switch ops[i] % 5 {
			case 0:
				fields.Add(name, value)
				m.add(name, value)
			case 1:
				fields.Del(name)
				m.del(name)
			case 2:
				fields.SetBytes(name, []byte(value))
				m.del(name)
				m.add(name, value)
			case 3:
				if fields.Added() { // what the gateway added itself is not the client's to remove: the model knows no difference
					continue
				}
				fields.StripHopByHop()
				m.strip()
			case 4:
				copied := new(exchange.Fields)
				copied.CopyFrom(fields)
				if got := string(copied.AppendHTTP1(nil, 0)); got != m.text() {
					t.Fatalf("copy %q, want %q", got, m.text())
				}
			}
			compareFields(t, fields, m)
		}
		compareFields(t, fields, m)
	})
}

func compareFields(t *testing.T, f *exchange.Fields, m model) {
	t.Helper()
	if got := string(f.AppendHTTP1([]byte("<"), 0)); got != "<"+m.text() {
		t.Fatalf("%q\nwant %q", got, m.text())
	}
	var all model
	for n, v := range f.All() {
		all.add(string(n), string(v))
	}
	if all.text() != m.text() || f.Len() != len(m) {
		t.Fatalf("%d fields %q\nwant %q", f.Len(), all.text(), m.text())
	}
	for _, name := range fieldNames {
		i := slices.IndexFunc(m, func(l [2]string) bool { return strings.EqualFold(l[0], name) })
		v, found := f.First(strings.ToLower(name))
		if found != (i >= 0) || found && string(v) != m[i][1] {
			t.Fatalf("first %s: %q %v", name, v, found)
		}
	}
}

func TestStripHopByHop(t *testing.T) {
	for _, tc := range []struct {
		name     string
		in, want model
	}{
		{"second Connection line", model{{"Connection", ""}, {"Connection", "X-Secret"}, {"X-Secret", "1"}, {"X", "2"}}, model{{"X", "2"}}},
		{"named before its Connection", model{{"X-Secret", "1"}, {"connection", "a, x-SECRET ,b"}, {"X", "2"}}, model{{"X", "2"}}},
		{"twice the named field", model{{"X-S", "1"}, {"Connection", "x-s"}, {"x-S", "2"}}, nil},
		{"h2c", model{{"Upgrade", "h2c"}, {"HTTP2-Settings", "AAM"}, {"Connection", "Upgrade, HTTP2-Settings"}}, nil},
		{
			"what routes is not nominated",
			model{{"Host", "h"}, {"Content-Length", "5"}, {"X-Forwarded-For", "1"}, {"Connection", "host, content-length, x-forwarded-for"}},
			model{{"Host", "h"}, {"Content-Length", "5"}, {"X-Forwarded-For", "1"}},
		},
		{"authorization may be nominated", model{{"Authorization", "x"}, {"Connection", "authorization"}}, nil},
		{"all hop fields", model{
			{"Keep-Alive", "1"},
			{"TE", "trailers"},
			{"Trailer", "X"},
			{"Trailers", "X"},
			{"Proxy-Connection", "close"},
			{"Proxy-Authenticate", "x"},
			{"Proxy-Authorization", "x"},
			{"Transfer-Encoding", "chunked"},
			{"Cookie", "a"},
		}, model{{"Cookie", "a"}}},
		{"a Connection field names another", model{{"Connection", "connection, x"}, {"Connection", "y"}, {"X", "1"}, {"Y", "1"}}, nil},
	} {
		f := received(tc.in)
		f.StripHopByHop()
		if got := string(f.AppendHTTP1(nil, 0)); got != tc.want.text() {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.want.text())
		}
		f.StripHopByHop()
		if got := string(f.AppendHTTP1(nil, 0)); got != tc.want.text() {
			t.Errorf("%s, twice: %q", tc.name, got)
		}
	}
}

func TestKnownField(t *testing.T) {
	for name, want := range map[string]exchange.FieldID{
		"host": exchange.FieldHost, "HOST": exchange.FieldHost, "Content-Length": exchange.FieldContentLength,
		"content_length": exchange.FieldOther, "x_forwarded_for": exchange.FieldUnderscored, "X_Forwarded-Host": exchange.FieldUnderscored,
		"x-forwarded-client-cert": exchange.FieldXForwardedOther, "X-Forwarded-A-Name-That-Is-Longer-Than-Any-Known-One": exchange.FieldXForwardedOther,
		"X_Forwarded_Client_Cert": exchange.FieldUnderscored, "x-forwarded": exchange.FieldOther, "X-Forwardedness": exchange.FieldOther,
		"X-Real_IP": exchange.FieldUnderscored, "X-Real-IP": exchange.FieldXRealIP, "hosts": exchange.FieldOther, "": exchange.FieldOther,
		"Proxy-Authorization": exchange.FieldProxyAuthorization, strings.Repeat("x", 2000): exchange.FieldOther,
		"\x68\x6f\x73\xf4": exchange.FieldOther,
	} {
		if got := exchange.KnownField([]byte(name)); got != want {
			t.Errorf("%.30q is %d, want %d", name, got, want)
		}
	}
}
