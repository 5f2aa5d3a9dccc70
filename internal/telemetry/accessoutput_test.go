package telemetry_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
)

func TestAccessLogReopen(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access.log")
	l := newLog(t, nil, nil)
	stop := run(l)
	if err := l.Reconfigure(to(file, "json")); err != nil {
		t.Fatal(err)
	}
	l.Log(finished())
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	l.Log(finished())
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	l.Log(finished())
	stop()
	if old, fresh := strings.Count(content(t, file+".1"), "\n"), strings.Count(content(t, file), "\n"); old != 2 || fresh != 1 {
		t.Errorf("%d lines in the rotated file and %d in the new one, want 2 and 1", old, fresh)
	}
}

func TestAccessLogConcurrentChanges(t *testing.T) {
	dir := t.TempDir()
	l := newLog(t, nil, nil)
	stop := run(l)
	outputs := []config.Observability{
		to(filepath.Join(dir, "json"), "json"),
		to(filepath.Join(dir, "common"), "common"),
	}
	if err := l.Reconfigure(outputs[0]); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			x := finished()
			for range 3000 {
				l.Log(x)
			}
		})
	}
	for i := range 50 {
		if err := l.Reconfigure(outputs[i%2]); err != nil {
			t.Fatal(err)
		}
		if err := l.Reopen(); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	stop()
	lines := 0
	for _, o := range outputs {
		for line := range strings.Lines(content(t, o.Log.Output)) {
			lines++
			if json.Valid([]byte(line)) != (o.Log.Format == "json") {
				t.Fatalf("in the %s file: %s", o.Log.Format, line)
			}
		}
	}
	if lost := l.Dropped(); lines+int(lost) != 12000 || lost != 0 {
		t.Errorf("%d lines written and %d lost, want 12000 and 0", lines, lost)
	}
}

// syncBuffer is a bytes.Buffer for several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// Nobody reads: traffic goes on, the oldest lines are lost and counted; once somebody reads all others arrive whole.
func TestAccessLogBlockedOutput(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	l := newLog(t, w, nil)
	stop := run(l)
	if err := l.Reconfigure(to("stdout", "json")); err != nil {
		t.Fatal(err)
	}
	w.Close()
	const total = 100_000
	x := finished()
	for i := range total {
		x.Record.BytesOut = int64(i)
		l.Log(x)
	}
	if l.Dropped() == 0 {
		t.Error("nothing was lost although nobody reads")
	}
	lines := make(chan []string)
	go func() {
		var all []string
		for s := bufio.NewScanner(r); s.Scan(); {
			all = append(all, s.Text())
		}
		lines <- all
	}()
	stop()
	all := <-lines
	if got := len(all) + int(l.Dropped()); got != total {
		t.Errorf("%d lines read + %d lost = %d, want %d", len(all), l.Dropped(), got, total)
	}
	if last := all[len(all)-1]; !strings.Contains(last, fmt.Sprintf(`"response_bytes":%d,`, total-1)) {
		t.Errorf("the newest line is not the last: %s", last)
	}
	for _, line := range all {
		if !json.Valid([]byte(line)) {
			t.Fatalf("broken line: %q", line)
		}
	}
}

// Nobody ever reads: the end does not hang.
func TestAccessLogHangingOutput(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	process := new(syncBuffer)
	l := newLog(t, w, process)
	stop := run(l)
	if err := l.Reconfigure(to("stdout", "json")); err != nil {
		t.Fatal(err)
	}
	w.Close()
	for range 5000 {
		l.Log(finished())
	}
	start := time.Now()
	stop()
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("the end took %v", d)
	}
	read := make(chan int)
	go func() {
		text, _ := io.ReadAll(r)
		read <- bytes.Count(text, []byte{'\n'})
	}()
	if n := <-read; n+int(l.Dropped()) != 5000 {
		t.Errorf("%d lines in the pipe + %d lost, want 5000", n, l.Dropped())
	}
	if !strings.Contains(process.String(), "given up") {
		t.Errorf("process log: %s", process)
	}
}

// A closed output must neither end the process nor fill its log.
func TestAccessLogClosedOutput(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	process := new(syncBuffer)
	l := newLog(t, w, process)
	stop := run(l)
	if err := l.Reconfigure(to("stdout", "json")); err != nil {
		t.Fatal(err)
	}
	r.Close()
	for range 3000 {
		l.Log(finished())
	}
	stop()
	w.Close()
	if n := l.Dropped(); n != 3000 {
		t.Errorf("%d lines lost, want 3000", n)
	}
	if n := strings.Count(process.String(), "\n"); n != 1 {
		t.Errorf("%d lines in the process log, want 1: %s", n, process)
	}
}

func TestAccessLogFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("no device that is always full")
	}
	process := new(syncBuffer)
	l := newLog(t, nil, process)
	stop := run(l)
	if err := l.Reconfigure(to("/dev/full", "json")); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		l.Log(finished())
	}
	stop()
	if n := l.Dropped(); n != 1000 {
		t.Errorf("%d lines lost, want 1000", n)
	}
	if !regexp.MustCompile(`cannot be written.*no space left`).MatchString(process.String()) {
		t.Errorf("process log: %s", process)
	}
}

// Entries that are small are bounded by their number, long before their bytes would be.
func TestWaitingEntriesAreBounded(t *testing.T) {
	const most, total = 65536, 70000
	l := newLog(t, nil, nil) // nothing is written yet
	if err := l.Reconfigure(to(filepath.Join(t.TempDir(), "access.log"), "common")); err != nil {
		t.Fatal(err)
	}
	x := finished()
	for range total {
		l.Log(x)
	}
	if n := l.Dropped(); n < total-most || n > total-most/2 {
		t.Errorf("%d of %d entries were lost", n, total)
	}
	run(l)()
}
