package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// startBackend builds the tools and starts the upstream on a free port.
func startBackend(t *testing.T) (*bench, int) {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("no gcc here: the load tools cannot be built")
	}
	b := &bench{cache: t.TempDir(), seconds: 0.3, processors: 1}
	var err error
	if b.kit, err = buildTools(t.Context(), b.cache); err != nil {
		t.Fatal(err)
	}
	for range 50 { // another process may take one of the ports before the upstream does
		b.basePort = portBlock()
		if err = b.startUpstream(t.Context()); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.upstream.finish)
	return b, b.basePort
}

// portBlock is the first of the ports that an upstream needs, below those that the system gives to clients.
func portBlock() int { return 20000 + 4*rand.IntN(3000) }

func TestLoadTools(t *testing.T) {
	b, port := startBackend(t)
	plan := append([]workload{}, workloads...)
	plan = append(plan, plan[0].fixedRate(2000))
	for _, w := range plan {
		t.Run(w.ID+" "+string(w.Tool), func(t *testing.T) {
			if !w.Tool.stays() || w.Tool == toolFull || w.Tool == toolResumed {
				t.Skip("the upstream speaks no TLS: see TestTLSTools")
			}
			w.Warm = 0.2
			if w.Tool == toolPaced {
				w.Conns = 50
			}
			window := 0.3
			if w.Tool == toolRate || w.Tool == toolPaced { // whose figures are wrong by what holds the tool up at its end
				window = 2
			}
			res, err := b.loadOnce(t.Context(), w, site{Plain: port, TCP: port + 1, UDP: port + 2}, window)
			if err != nil {
				t.Fatal(err)
			}
			if res.N == 0 || res.Errors != 0 || res.P50 < 0 || res.P99 < res.P50 {
				t.Errorf("result %+v", res)
			}
			if w.Tool == toolRate && (res.PerSecond < 0.5*w.Rate || res.PerSecond > 1.5*w.Rate) {
				t.Errorf("%v a second, asked for %v", res.PerSecond, w.Rate)
			}
			if w.Tool == toolPaced && (res.PerSecond < 15*50 || res.PerSecond > 60*50) {
				t.Errorf("%v events a second, want about %d", res.PerSecond, 30*50)
			}
		})
	}
}

// A server of the standard library stands in for a proxy that speaks TLS.
func TestTLSTools(t *testing.T) {
	b, _ := startBackend(t)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == grpcPath {
			answerCall(w, r)
			return
		}
		_, _ = w.Write(bytes.Repeat([]byte{'x'}, 42))
	}))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // connections end in the middle when a window does
	s.StartTLS()
	defer s.Close()
	at := site{TLS: s.Listener.Addr().(*net.TCPAddr).Port}
	if err := call(t.Context(), at.TLS); err != nil {
		t.Error(err)
	}
	for _, w := range workloads {
		if w.Tool.stays() && w.Tool != toolFull && w.Tool != toolResumed {
			continue
		}
		t.Run(w.ID+" "+string(w.Tool), func(t *testing.T) {
			cmd, err := b.kit.command(w, at, 1)
			if err != nil {
				t.Skip(err)
			}
			l, err := startLoad(cmd)
			if err != nil {
				t.Fatal(err)
			}
			defer l.finish()
			read := l.result
			if w.Tool == toolH2 {
				read = l.h2Result
			}
			if res, err := read(t.Context(), toolGrace); err != nil || res.N == 0 || res.Errors != 0 || res.PerSecond <= 0 {
				t.Errorf("%+v, %v", res, err)
			}
		})
	}
}

func TestParseH2load(t *testing.T) {
	const counts = "requests: 900 total, 910 started, 900 done, 890 succeeded, 10 failed, 10 errored, 2 timeout"
	for _, c := range []struct {
		name, finished, requests string
		ok                       bool
	}{
		{"whole", "finished in 2.50s, 356.00 req/s, 3.41MB/s", counts, true},
		{"milliseconds", "finished in 250.00ms, 3560.00 req/s, 3.41MB/s", counts, true},
		{"no time", "finished in , 356.00 req/s", counts, false},
		{"no rate", "finished in 2.50s", counts, false},
		{"no counts", "finished in 2.50s, 356.00 req/s, 3.41MB/s", "requests: many", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			res, err := parseH2load(c.finished, c.requests)
			if (err == nil) != c.ok {
				t.Fatalf("err = %v", err)
			}
			if c.ok && (res.N != 890 || res.Errors != 12 || res.PerSecond < 356 || res.Seconds <= 0 || res.P50 != -1) {
				t.Errorf("%+v", res)
			}
		})
	}
}

func TestLoadCountsWrongAnswers(t *testing.T) {
	b, port := startBackend(t)
	w := workload{Tool: toolRate, Path: "/", Conns: 4, Body: 43, Rate: 200, Warm: 0.01}
	res, err := b.loadOnce(t.Context(), w, site{Plain: port}, 0.3)
	if err != nil {
		t.Fatal(err)
	}
	if res.N != 0 || res.Errors == 0 {
		t.Errorf("answers of a wrong length were taken: %+v", res)
	}
}

// An open loop must not hide the time in which the server does not answer.
func TestOpenLoopSeesAStall(t *testing.T) {
	b, _ := startBackend(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") // accepts in the kernel, never answers
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w := workload{Tool: toolRate, Path: "/", Conns: 2, Rate: 1000}
	res, err := b.loadOnce(t.Context(), w, site{Plain: l.Addr().(*net.TCPAddr).Port}, 0.4)
	if err != nil {
		t.Fatal(err)
	}
	if res.N != 0 || res.P99 < 300e3 || res.P50 < 150e3 || res.P50 > 250e3 {
		t.Errorf("of requests due over 400 ms and never answered: %+v", res)
	}
}

func TestIdleConnectionsStay(t *testing.T) {
	b, port := startBackend(t)
	w := workload{Tool: toolIdle, Path: "/", Conns: 300, Body: 42}
	l, err := startLoad(exec.Command(b.kit.load, w.loadArgs(port, 0)...))
	if err != nil {
		t.Fatal(err)
	}
	defer l.finish()
	res, err := l.result(t.Context(), toolGrace)
	if err != nil || res.N != 300 || res.Errors != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	for _, step := range []struct {
		name string
		do   func()
		want int
	}{
		{"open", func() {}, 300},
		{"upstream gone", func() { b.upstream.finish() }, 0},
	} {
		step.do()
		if _, err := l.in.Write([]byte("alive\n")); err != nil {
			t.Fatal(err)
		}
		if got, err := l.result(t.Context(), toolGrace); err != nil || got.Alive != step.want {
			t.Errorf("%s: %d alive, %v; want %d", step.name, got.Alive, err, step.want)
		}
	}
}

// The upstream itself stands in for a proxy: its figures come from the same readings.
func TestMeasure(t *testing.T) {
	b, port := startBackend(t)
	s := b.siteOf(0, "self")
	s.Plain = port
	b.seconds = 2 // the window begins when this process hears of it, late on a busy machine
	p := &running{peer: peer{name: "self"}, process: b.upstream.process, site: s}
	got, err := b.measure(t.Context(), p, workloads[0])
	if err != nil {
		t.Fatal(err)
	}
	if got.CPUMicros <= 0 || got.CPUMicros > 1000 || got.PerSecond <= 0 || got.PSS < 64<<10 || got.Errors != 0 {
		t.Errorf("trial %+v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.measure(ctx, p, workloads[0]); err == nil {
		t.Error("a cancelled trial gave a result")
	}
}

func TestToolThatFailsIsExplained(t *testing.T) {
	b, _ := startBackend(t)
	_, err := b.loadOnce(t.Context(), workload{Tool: "nonsense"}, site{}, 0)
	if err == nil || !strings.Contains(err.Error(), "usage:") {
		t.Errorf("err = %v", err)
	}
}

func TestToolsAreBuiltOnce(t *testing.T) {
	b, _ := startBackend(t)
	before, err := os.Stat(b.kit.load)
	if err != nil {
		t.Fatal(err)
	}
	again, err := buildTools(t.Context(), b.cache)
	if err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(again.load)
	if err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("built again: %v", err)
	}
}

func TestTakenPortIsRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	if err := free(port); err == nil || !strings.Contains(err.Error(), fmt.Sprint(port)) {
		t.Errorf("err = %v", err)
	}
}

func TestCertificate(t *testing.T) {
	c, err := makeCertificate(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tls.LoadX509KeyPair(c.cert, c.key); err != nil {
		t.Error(err)
	}
	if _, err := tls.LoadX509KeyPair(c.pair, c.pair); err != nil { // as haproxy reads it
		t.Error(err)
	}
}
