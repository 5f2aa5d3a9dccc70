package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// toolGrace is how long a load tool may take beyond its planned time.
const toolGrace = 60 * time.Second

// loadResult is the line that a load tool prints as its measured window ends. Times are in
// microseconds; a negative one is unknown.
type loadResult struct {
	N         int64   `json:"n"`
	Seconds   float64 `json:"secs"`
	PerSecond float64 `json:"per_sec"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	First50   float64 `json:"first50_us"` // time to the first byte of an answer; 0 from wrk
	First99   float64 `json:"first99_us"`
	Errors    int64   `json:"errors"`
	Alive     int     `json:"alive"` // of the answer of idle connections
}

// loader is a running load tool.
type loader struct {
	*process
	in    io.WriteCloser
	lines chan string // closed at the end of its output
	said  *bytes.Buffer
}

// startLoad starts a load tool. The caller must call finish.
func startLoad(cmd *exec.Cmd) (*loader, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("input of a load tool: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("output of a load tool: %w", err)
	}
	l := &loader{in: in, lines: make(chan string, 16), said: &bytes.Buffer{}}
	cmd.Stdout, cmd.Stderr = w, l.said
	l.process, err = launch(cmd)
	w.Close()
	if err != nil {
		r.Close()
		return nil, err
	}
	go func() { // ends with the tool's output, which finish waits for
		defer close(l.lines)
		defer r.Close()
		for s := bufio.NewScanner(r); s.Scan(); {
			l.lines <- s.Text()
		}
	}()
	return l, nil
}

// next waits for a line that begins with the prefix.
func (l *loader) next(ctx context.Context, prefix string, limit time.Duration) (string, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case line, ok := <-l.lines:
			if !ok {
				<-l.done
				return "", fmt.Errorf("the load tool ended early: %v %s", l.err, strings.TrimSpace(l.said.String()))
			}
			if strings.HasPrefix(line, prefix) {
				return line, nil
			}
		case <-timer.C:
			return "", errors.New("the load tool takes too long")
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

func (l *loader) result(ctx context.Context, limit time.Duration) (loadResult, error) {
	line, err := l.next(ctx, "{", limit)
	if err != nil {
		return loadResult{}, err
	}
	var res loadResult
	if err := json.Unmarshal([]byte(line), &res); err != nil {
		return loadResult{}, fmt.Errorf("the load tool's result: %w", err)
	}
	return res, nil
}

// finish ends the tool and waits for its output. A tool that has printed its result ends with
// its input; one that is still at work is stopped.
func (l *loader) finish() {
	l.in.Close()
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-l.done:
	case <-timer.C:
		l.stop()
	}
	for range l.lines {
	}
}

// measure runs the workload once against a proxy and reads what it cost.
func (b *bench) measure(ctx context.Context, p *running, w workload) (trial, error) {
	if p.scrape != "" {
		stop := scrape(ctx, fmt.Sprintf("http://127.0.0.1:%d%s", p.site.Admin, p.scrape))
		defer stop()
	}
	cmd, err := b.kit.command(w, p.site, b.seconds)
	if err != nil {
		return trial{}, err
	}
	var t trial
	if w.Tool.stays() {
		t, err = b.measureWindow(ctx, p, cmd)
	} else {
		t, err = b.measureWhole(ctx, p, w, cmd)
	}
	if gone := p.ended(); gone != nil {
		return t, fmt.Errorf("%s ended during the trial: %w", p.name, gone)
	}
	p.truncateLog()
	return t, err
}

// measureWindow uses a client of our own, which tells when its window begins and keeps its
// connections until it is let go, so that memory is read with all of them in place.
func (b *bench) measureWindow(ctx context.Context, p *running, cmd *exec.Cmd) (trial, error) {
	l, err := startLoad(cmd)
	if err != nil {
		return trial{}, err
	}
	defer l.finish()
	ours := append(b.own(), l.pid())
	if _, err := l.next(ctx, "start", toolGrace); err != nil {
		return trial{}, err
	}
	from, err := read(p.pid(), ours)
	if err != nil {
		return trial{}, err
	}
	res, err := l.result(ctx, toolGrace+time.Duration(b.seconds*float64(time.Second)))
	if err != nil {
		return trial{}, err
	}
	to, err := read(p.pid(), ours)
	if err != nil {
		return trial{}, err
	}
	return p.trial(res, to.since(from, b.processors, 0))
}

// measureWhole uses a foreign tool, whose own CPU is known only once it has ended.
func (b *bench) measureWhole(ctx context.Context, p *running, w workload, cmd *exec.Cmd) (trial, error) {
	ours := b.own()
	from, err := read(p.pid(), ours)
	if err != nil {
		return trial{}, err
	}
	l, err := startLoad(cmd)
	if err != nil {
		return trial{}, err
	}
	defer l.finish()
	limit := toolGrace + time.Duration(b.seconds*float64(time.Second))
	var res loadResult
	if w.Tool == toolH2 {
		res, err = l.h2Result(ctx, limit)
	} else {
		res, err = l.result(ctx, limit)
	}
	if err != nil {
		return trial{}, err
	}
	<-l.done
	to, err := read(p.pid(), ours)
	if err != nil {
		return trial{}, err
	}
	used := l.cmd.ProcessState.UserTime() + l.cmd.ProcessState.SystemTime()
	return p.trial(res, to.since(from, b.processors, used))
}

// own are the processes of the bench itself.
func (b *bench) own() []int {
	ids := []int{os.Getpid(), b.upstream.pid()}
	if b.grpc != nil {
		ids = append(ids, b.grpc.pid())
	}
	return ids
}

// trial makes the figures of one run.
func (p *running) trial(res loadResult, u usage) (trial, error) {
	if res.N == 0 {
		return trial{}, fmt.Errorf("nothing completed, %d errors", res.Errors)
	}
	procs, err := readAll()
	if err != nil {
		return trial{}, err
	}
	pss, err := sumPSS(family(procs, p.pid()))
	if err != nil {
		return trial{}, err
	}
	return trial{
		CPUMicros: float64(u.proxy.Microseconds()) / float64(res.N), Bench: float64(u.bench.Microseconds()) / float64(res.N), PerSecond: res.PerSecond,
		P50: res.P50, P99: res.P99, First50: res.First50, First99: res.First99, PSS: pss, Others: u.others, Errors: res.Errors, Attempts: 1,
	}, nil
}

// calmTrial measures until others leave the machine alone, at most retries times more, and
// gives the calmest attempt.
func (b *bench) calmTrial(ctx context.Context, p *running, w workload) (trial, error) {
	var attempts []trial
	for {
		t, err := b.measure(ctx, p, w)
		if err != nil {
			return trial{}, err
		}
		attempts = append(attempts, t)
		if t.Others <= b.maxOthers || len(attempts) > b.retries {
			return calmest(attempts), nil
		}
		b.progress("%s %s: others used %.0f %% of the machine, once more", w.ID, p.name, 100*t.Others)
	}
}

// scrape reads the metrics each second until the returned function is called.
func scrape(ctx context.Context, url string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		every := time.NewTicker(time.Second)
		defer every.Stop()
		for {
			_, _ = fetch(ctx, url, nil) // a proxy that does not answer shows in its figures
			select {
			case <-every.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// client is for the bench's own few requests: none is kept, none is encrypted for safety.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: anyCertificate}, Timeout: 10 * time.Second}

// fetch makes one request to a loopback address; a body makes it a POST.
func fetch(ctx context.Context, url string, body []byte) ([]byte, error) {
	method := http.MethodGet
	if body != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("making a request: %w", err)
	}
	req.Host = "bench.example"
	res, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking: %w", err)
	}
	defer res.Body.Close()
	got, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("reading an answer: %w", err)
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: status %d", method, req.URL.Path, res.StatusCode)
	}
	return got, nil
}
