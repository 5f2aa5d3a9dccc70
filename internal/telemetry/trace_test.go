package telemetry_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/telemetry"
)

const (
	traceID  = "4bf92f3577b34da6a3ce929d0e0e4736"
	parentID = "00f067aa0ba902b7"
)

func TestParseTraceparent(t *testing.T) {
	for name, c := range map[string]struct {
		in string
		ok bool
	}{
		"sampled":                 {"00-" + traceID + "-" + parentID + "-01", true},
		"not sampled":             {"00-" + traceID + "-" + parentID + "-00", true},
		"other flags":             {"00-" + traceID + "-" + parentID + "-ff", true},
		"next version":            {"01-" + traceID + "-" + parentID + "-01", true},
		"next version with more":  {"cc-" + traceID + "-" + parentID + "-01-what-ever", true},
		"next version, no dash":   {"cc-" + traceID + "-" + parentID + "-01.what", false},
		"version 00 with more":    {"00-" + traceID + "-" + parentID + "-01-x", false},
		"version ff":              {"ff-" + traceID + "-" + parentID + "-01", false},
		"upper-case trace":        {"00-" + strings.ToUpper(traceID) + "-" + parentID + "-01", false},
		"upper-case parent":       {"00-" + traceID + "-" + strings.ToUpper(parentID) + "-01", false},
		"upper-case version":      {"0A-" + traceID + "-" + parentID + "-01", false},
		"upper-case flags":        {"00-" + traceID + "-" + parentID + "-0A", false},
		"zero trace":              {"00-" + strings.Repeat("0", 32) + "-" + parentID + "-01", false},
		"zero parent":             {"00-" + traceID + "-" + strings.Repeat("0", 16) + "-01", false},
		"short":                   {"00-" + traceID + "-" + parentID + "-0", false},
		"no digits":               {"00-" + strings.Repeat("g", 32) + "-" + parentID + "-01", false},
		"other separator":         {"00_" + traceID + "_" + parentID + "_01", false},
		"blank before":            {" 00-" + traceID + "-" + parentID + "-01", false},
		"empty":                   {"", false},
		"much too long":           {"cc-" + traceID + "-" + parentID + "-01-" + strings.Repeat("a", 4096), false},
		"trace id with separator": {"00-4bf92f3577b34da6-3ce929d0e0e4736-" + parentID + "-01", false},
	} {
		got, ok := telemetry.ParseTraceparent([]byte(c.in))
		if ok != c.ok || ok && string(got) != traceID {
			t.Errorf("%s: %q, %v, want %v", name, got, ok, c.ok)
		}
	}
}

// The pattern of the recommendation, written down a second time.
var traceparent = regexp.MustCompile(`^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-(?s:.*))?$`)

func FuzzParseTraceparent(f *testing.F) {
	f.Add([]byte("00-" + traceID + "-" + parentID + "-01"))
	f.Add([]byte("cc-" + traceID + "-" + parentID + "-01-more"))
	f.Add([]byte("ff-" + strings.Repeat("0", 32) + "-" + parentID + "-01"))
	f.Fuzz(func(t *testing.T, v []byte) {
		got, ok := telemetry.ParseTraceparent(v)
		m := traceparent.FindSubmatch(v)
		want := m != nil && string(m[1]) != "ff" && strings.Trim(string(m[2]), "0") != "" && strings.Trim(string(m[3]), "0") != "" &&
			(string(m[1]) != "00" || len(m[5]) == 0) && len(v) <= 512
		if ok != want {
			t.Fatalf("%q: %v, want %v", v, ok, want)
		}
		if ok && string(got) != string(m[2]) {
			t.Fatalf("%q: trace id %q", v, got)
		}
	})
}

func TestRequestID(t *testing.T) {
	for in, want := range map[string]bool{
		"a": true, "!~": true, strings.Repeat("x", 128): true,
		"": false, strings.Repeat("x", 129): false, "a b": false, "a\n": false, "é": false, "\x7f": false,
	} {
		if got := telemetry.ValidRequestID([]byte(in)); got != want {
			t.Errorf("ValidRequestID(%q) = %v, want %v", in, got, want)
		}
	}
	seen := make(map[string]bool)
	for range 1000 {
		var x exchange.Exchange
		telemetry.Identify(&x)
		id := strings.Clone(x.Record.RequestID)
		if len(id) != 32 || strings.Trim(id, "0123456789abcdef") != "" || seen[id] {
			t.Fatalf("request id %q", id)
		}
		seen[id] = true
	}
}

func TestIdentify(t *testing.T) {
	good := "00-" + traceID + "-" + parentID + "-01"
	for name, c := range map[string]struct {
		fields      []string
		keeps       bool
		wantTraceID string
	}{
		"nothing":          {nil, false, ""},
		"both":             {[]string{"X-Request-Id", "abc", "Traceparent", good}, true, traceID},
		"two request ids":  {[]string{"X-Request-Id", "abc", "X-Request-Id", "abc"}, false, ""},
		"bad request id":   {[]string{"X-Request-Id", "a b"}, false, ""},
		"two traceparents": {[]string{"Traceparent", good, "Traceparent", good}, false, ""},
		"bad traceparent":  {[]string{"Traceparent", "00-1"}, false, ""},
	} {
		x := begin(1)
		for i := 0; i < len(c.fields); i += 2 {
			x.Request.Fields.Add(c.fields[i], c.fields[i+1])
		}
		telemetry.Identify(x)
		if kept := x.Record.RequestID == "abc"; kept != c.keeps || x.Record.RequestID == "" || x.Record.TraceID != c.wantTraceID {
			t.Errorf("%s: request id %q, trace id %q", name, x.Record.RequestID, x.Record.TraceID)
		}
	}
}

func BenchmarkIdentify(b *testing.B) {
	x := finished()
	b.ReportAllocs()
	for b.Loop() {
		telemetry.Identify(x)
	}
}
