package telemetry_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/telemetry"
)

// finished is an exchange as it is when it is logged, with secrets everywhere that a client can put them.
func finished() *exchange.Exchange {
	x := begin(40000)
	x.Request.Method = []byte("GET")
	x.Request.Target = []byte("/v1/chat/completions?api_key=canary-query")
	x.Request.Path = []byte("/chat/completions") // rewritten by a handler
	x.Request.Query = []byte("api_key=canary-query")
	x.Request.Host = []byte("api.example.com")
	f := &x.Request.Fields
	f.Add("User-Agent", "curl/8.5.0")
	f.Add("Authorization", "Bearer canary-authorization")
	f.Add("Cookie", "session=canary-cookie")
	f.Add("Referer", "https://example.com/page?token=canary-referrer")
	r := &x.Record
	r.Start = time.Date(2026, 11, 30, 8, 4, 5, 980e6, time.UTC)
	r.Duration, r.HeadAt, r.FirstByteAt = 1234567*time.Microsecond, 10*time.Millisecond, 25*time.Millisecond
	r.Status, r.BytesIn, r.BytesOut, r.Outcome = 200, 12, 3456, exchange.OutcomeOK
	r.Entrypoint, r.Router, r.Service = "web", "chat", "llm"
	r.RequestID, r.TraceID = "req-1", "4bf92f3577b34da6a3ce929d0e0e4736"
	r.AddAttempt(exchange.Attempt{Backend: "http://10.0.0.1:8000"})
	r.AddAttempt(exchange.Attempt{Backend: "http://10.0.0.2:8000"})
	r.Err = errors.New("canary-error")
	return x
}

// written logs exchanges and returns what then stands in the file.
func written(t *testing.T, format string, all ...*exchange.Exchange) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "access.log")
	l := newLog(t, nil, nil)
	stop := run(l)
	if err := l.Reconfigure(to(file, format)); err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		l.Log(x)
	}
	stop()
	return content(t, file)
}

func content(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// to is the configuration of an access log.
func to(output, format string) config.Observability {
	return config.Observability{AccessLog: true, Log: config.AccessLog{Output: output, Format: format}}
}

func newLog(t *testing.T, stdout *os.File, process io.Writer) *telemetry.AccessLog {
	t.Helper()
	if process == nil {
		process = io.Discard
	}
	return telemetry.NewAccessLog(stdout, os.Stderr, slog.New(slog.NewTextHandler(process, nil)))
}

// run starts the writer; the returned func ends it and waits.
func run(l *telemetry.AccessLog) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.Run(ctx)
	}()
	return func() {
		cancel()
		<-ended
	}
}

func TestAccessLogJSON(t *testing.T) {
	proxied := finished()
	proxied.SetClient(netip.MustParseAddr("203.0.113.9"))
	proxied.Conn.TLS = &tls.ConnectionState{Version: tls.VersionTLS13}

	rejected := begin(1)
	rejected.Conn.Remote = netip.AddrPort{}
	rejected.Begin(client{}, &conn.Alarm{}, rejected.Conn, time.Unix(0, 0))
	rejected.Request.Method, rejected.Request.Target = []byte("GET"), []byte("/x")
	rejected.Record.Status, rejected.Record.Outcome = 404, exchange.OutcomeRejected
	rejected.Record.Code, rejected.Record.Limit = exchange.CodeNoRoute, "max_headers"

	rejected.Record.Err = fmt.Errorf("canary: %w", &exchange.Error{Err: exchange.Fault("in our words")})
	quoting := begin(1)
	quoting.Begin(client{}, &conn.Alarm{}, quoting.Conn, time.Unix(0, 0))
	quoting.Record.Status, quoting.Record.Outcome, quoting.Record.Code = 400, exchange.OutcomeRejected, exchange.CodeBadRequest
	quoting.Record.Err = errors.New("what the client has sent: canary")

	left := begin(1)
	left.Begin(client{}, &conn.Alarm{}, left.Conn, time.Unix(0, 0))
	left.Record.Outcome = exchange.OutcomeDisconnected

	failed := begin(1)
	failed.Begin(client{}, &conn.Alarm{}, failed.Conn, time.Unix(0, 0))
	failed.Record.Status, failed.Record.Outcome, failed.Record.Code = 502, exchange.OutcomeFailed, exchange.CodeConnectFailed
	failed.Record.Err = errors.New(`dial "http://user:canary@10.0.0.1": refused`)

	got := strings.Split(strings.TrimSuffix(written(t, "json", proxied, rejected, quoting, left, failed), "\n"), "\n")
	want := []string{
		`{"timestamp":"2026-11-30T08:04:07.214Z","client_ip":"203.0.113.9","method":"GET","path":"/v1/chat/completions",` +
			`"host":"api.example.com","status":200,"response_bytes":3456,"duration_ms":1234,"backend":"http://10.0.0.2:8000",` +
			`"router":"chat","entrypoint":"web","user_agent":"curl/8.5.0","peer_ip":"192.0.2.7","request_id":"req-1",` +
			`"trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","protocol":"HTTP/1.1","outcome":"ok","bytes_in":12,"ttft_ms":25,` +
			`"attempts":2,"tls_version":"1.3"}`,
		`{"timestamp":"1970-01-01T00:00:00.000Z","client_ip":null,"method":"GET","path":"/x","host":null,"status":404,` +
			`"response_bytes":0,"duration_ms":0,"backend":null,"router":null,"entrypoint":"web","user_agent":null,` +
			`"peer_ip":null,"protocol":"HTTP/1.1","outcome":"rejected","bytes_in":0,"error_code":"no_route","limit":"max_headers","error":"in our words"}`,
		`{"timestamp":"1970-01-01T00:00:00.000Z","client_ip":"192.0.2.7","method":null,"path":null,"host":null,"status":400,` +
			`"response_bytes":0,"duration_ms":0,"backend":null,"router":null,"entrypoint":"web","user_agent":null,` +
			`"peer_ip":"192.0.2.7","protocol":"HTTP/1.1","outcome":"rejected","bytes_in":0,"error_code":"bad_request"}`,
		`{"timestamp":"1970-01-01T00:00:00.000Z","client_ip":"192.0.2.7","method":null,"path":null,"host":null,"status":499,` +
			`"response_bytes":0,"duration_ms":0,"backend":null,"router":null,"entrypoint":"web","user_agent":null,` +
			`"peer_ip":"192.0.2.7","protocol":"HTTP/1.1","outcome":"disconnected","bytes_in":0}`,
		`{"timestamp":"1970-01-01T00:00:00.000Z","client_ip":"192.0.2.7","method":null,"path":null,"host":null,"status":502,` +
			`"response_bytes":0,"duration_ms":0,"backend":null,"router":null,"entrypoint":"web","user_agent":null,` +
			`"peer_ip":"192.0.2.7","protocol":"HTTP/1.1","outcome":"failed","bytes_in":0,"error_code":"connect_failed",` +
			`"error":"dial \"http://[redacted]@10.0.0.1\": refused"}`,
	}
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d: %q", len(got), len(want), got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("line %d:\n got %s\nwant %s", i, got[i], want[i])
		}
	}
}

func TestAccessLogCommon(t *testing.T) {
	odd := begin(1)
	odd.Request.Method, odd.Request.Target = []byte("GE\"T"), []byte("/a\\b\x01\xff")
	odd.Request.Fields.Add("Referer", "https://user:canary@example.com/")
	odd.Record.Start, odd.Record.Status = time.Unix(0, 0), 400
	got := written(t, "common", finished(), odd)
	want := `192.0.2.7 - - [30/Nov/2026:08:04:07 +0000] "GET /v1/chat/completions HTTP/1.1" 200 3456 "https://example.com/page" "curl/8.5.0"` + "\n" +
		`192.0.2.7 - - [01/Jan/1970:00:00:00 +0000] "GE\x22T /a\x5cb\x01\xff HTTP/1.1" 400 0 "-" "-"` + "\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestAccessLogHidesCredentials(t *testing.T) {
	for _, format := range []string{"json", "common"} {
		for _, o := range []exchange.Outcome{exchange.OutcomeOK, exchange.OutcomeRejected, exchange.OutcomeUpgraded} {
			x := finished()
			x.Record.Outcome = o
			if text := written(t, format, x); strings.Contains(text, "canary") || !strings.Contains(text, "curl") {
				t.Errorf("%s, %v: %s", format, o, text)
			}
		}
	}
}

func TestAccessLogEscaping(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`plain`, `plain`},
		{`a"b\c`, `a\"b\\c`},
		{"\x00\n\r\t\x1b[31m\x7f", `\u0000\u000a\u000d\u0009\u001b[31m\u007f`},
		{"Grüße 世界 🎉", "Grüße 世界 🎉"},
		{"\xff\xc3", `\u00ff\u00c3`},
		{"\xc3(", `\u00c3(`},
		{"a\u0085b", `a\u00c2\u0085b`},                           // a control character of the upper half
		{"\u200f", `\u00e2\u0080\u008f`},                         // direction mark
		{"\u2028\u202e", `\u00e2\u0080\u00a8\u00e2\u0080\u00ae`}, // line separator, direction override
		{"\xed\xa0\x80", `\u00ed\u00a0\u0080`},                   // half of a surrogate pair
	} {
		x := begin(1)
		x.Request.Target = []byte("/" + c.in)
		line := written(t, "json", x)
		if want := `"path":"/` + c.want + `"`; !strings.Contains(line, want) {
			t.Errorf("%q: no %s in %s", c.in, want, line)
		}
	}
}

// Whatever a client sends: one line, valid JSON, within a bound.
func FuzzAccessLogLine(f *testing.F) {
	f.Add([]byte("GET"), []byte("/a?b"), []byte("host"), "agent")
	f.Add([]byte("\x00\xff"), bytes.Repeat([]byte{0xff}, 9000), bytes.Repeat([]byte("\n"), 900), strings.Repeat("é", 3000))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, method, target, host []byte, agent string) {
		for _, format := range []string{"json", "common"} {
			file := filepath.Join(dir, fmt.Sprintf("%s-%d", format, os.Getpid()))
			_ = os.Remove(file)
			l := newLog(t, nil, nil)
			stop := run(l)
			if err := l.Reconfigure(to(file, format)); err != nil {
				t.Fatal(err)
			}
			x := begin(1)
			x.Request.Method, x.Request.Target, x.Request.Host = method, target, host
			x.Request.Fields.Add("User-Agent", agent)
			l.Log(x)
			stop()
			text := content(t, file)
			if strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\n") || len(text) > 64<<10 {
				t.Fatalf("not one line within the bound: %q", text)
			}
			if format == "json" && !json.Valid([]byte(text)) {
				t.Fatalf("not valid: %q", text)
			}
		}
	})
}

func TestAccessLogFlushesEverySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "access.log")
		l := newLog(t, nil, nil)
		stop := run(l)
		defer stop()
		if err := l.Reconfigure(to(file, "json")); err != nil {
			t.Fatal(err)
		}
		l.Log(finished())
		time.Sleep(999 * time.Millisecond)
		synctest.Wait()
		if text := content(t, file); text != "" {
			t.Errorf("written before a second has passed: %s", text)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if n := strings.Count(content(t, file), "\n"); n != 1 {
			t.Errorf("%d lines after a second, want 1", n)
		}
		for range 1000 { // more than one block: written without waiting
			l.Log(finished())
		}
		synctest.Wait()
		if n := strings.Count(content(t, file), "\n"); n < 300 {
			t.Errorf("%d lines, want the full blocks at once", n)
		}
	})
}

func TestAccessLogChange(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "second")
	l := newLog(t, nil, nil)
	stop := run(l)
	l.Log(finished()) // switched off: nothing
	log := func(cfg config.Observability, n int) {
		t.Helper()
		if err := l.Reconfigure(cfg); err != nil {
			t.Fatal(err)
		}
		for range n {
			l.Log(finished())
		}
	}
	log(to(first, "json"), 5)
	log(to(first, "common"), 7)
	log(to(second, "json"), 11)
	if err := l.Reconfigure(to(filepath.Join(dir, "no", "such"), "json")); err == nil {
		t.Error("an output that cannot be opened is accepted")
	}
	unused, err := l.Prepare(to(filepath.Join(dir, "third"), "json"))
	if err != nil {
		t.Fatal(err)
	}
	unused.Abort()
	l.Log(finished())
	log(config.Observability{}, 3)
	stop()
	for file, want := range map[string][2]int{first: {5, 7}, second: {12, 0}} {
		text := content(t, file)
		got := [2]int{strings.Count(text, `{"timestamp"`), strings.Count(text, "\n192.0.2.7")}
		if got != want {
			t.Errorf("%s: %v lines in json and common, want %v", filepath.Base(file), got, want)
		}
	}
	if n := l.Dropped(); n != 0 {
		t.Errorf("%d lines lost", n)
	}
	if info, err := os.Stat(first); err != nil || info.Mode().Perm()&^0o640 != 0 {
		t.Errorf("permissions %v (%v)", info.Mode(), err)
	}
}

func TestAccessLogDoesNotAllocate(t *testing.T) {
	for _, format := range []string{"json", "common"} {
		l, stop := discarding(t, format)
		x := finished()
		for range 10_000 { // until all chunks that are kept exist
			l.Log(x)
		}
		// One chunk of 256 KiB may be made in hundreds of lines while the writer is behind.
		if n := testing.AllocsPerRun(20_000, func() { l.Log(x) }); n >= 0.5 {
			t.Errorf("%s: %v allocations a line, want 0", format, n)
		}
		stop()
	}
}

func discarding(tb testing.TB, format string) (*telemetry.AccessLog, func()) {
	tb.Helper()
	l := telemetry.NewAccessLog(nil, nil, slog.New(slog.DiscardHandler))
	stop := run(l)
	if err := l.Reconfigure(to(os.DevNull, format)); err != nil {
		tb.Fatal(err)
	}
	return l, stop
}

func BenchmarkAccessLog(b *testing.B) {
	for _, format := range []string{"json", "common"} {
		b.Run(format, func(b *testing.B) {
			l, stop := discarding(b, format)
			defer stop()
			x := finished()
			b.ReportAllocs()
			for b.Loop() {
				l.Log(x)
			}
		})
	}
}

func BenchmarkAccessLogParallel(b *testing.B) {
	l, stop := discarding(b, "json")
	defer stop()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		x := finished()
		for pb.Next() {
			l.Log(x)
		}
	})
}
