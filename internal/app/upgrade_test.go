package app_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// versions are the servers that were built, by version: each once. TestMain removes their folder.
var versions = struct {
	mu     sync.Mutex // guards the rest, and is held over building
	folder string
	built  map[string]error
}{built: map[string]error{}}

// installed puts a version of the server into a folder of the test's own, as sluice.
func installed(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	install(t, version, filepath.Join(dir, "sluice"))
	return dir
}

// install puts a version of the server at a path.
func install(t *testing.T, version, path string) {
	t.Helper()
	versions.mu.Lock()
	defer versions.mu.Unlock()
	err, known := versions.built[version]
	if !known {
		_, err = gatewaytest.Build(versions.folder, version, version)
		versions.built[version] = err
	}
	if err = errors.Join(err, os.Link(filepath.Join(versions.folder, version), path)); err != nil {
		t.Fatal(err)
	}
}

// configured writes a configuration to a folder.
func configured(t *testing.T, dir string, s site) string {
	t.Helper()
	path := filepath.Join(dir, "gateway.acl")
	if err := os.WriteFile(path, []byte(s.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// script replaces the installed binary by a shell script.
func script(t *testing.T, dir, text string) {
	t.Helper()
	next := filepath.Join(dir, "next")
	if err := errors.Join(os.WriteFile(next, []byte("#!/bin/sh\n"+text+"\n"), 0o700), os.Rename(next, filepath.Join(dir, "sluice"))); err != nil {
		t.Fatal(err)
	}
}

// upgraded has a process replace itself, and returns its successor, which does not outlive the test.
func upgraded(t *testing.T, old *gatewaytest.Process) (pid int, gone func() bool) {
	t.Helper()
	old.Signal(t, syscall.SIGUSR2)
	pid, err := strconv.Atoi(old.Await(t, `"the new binary has taken over","pid":([0-9]+)`))
	if err != nil {
		t.Fatal(err)
	}
	gone = func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }
	t.Cleanup(func() {
		if !gone() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	return pid, gone
}

// TestUpgradeUnderLoad: another version takes over without a failed request, a refused connection or a cut stream; what
// is open ends with the old process.
func TestUpgradeUnderLoad(t *testing.T) {
	t.Parallel()
	b := gatewaytest.NewBackend(t, "one")
	dir := installed(t, "v1")
	install(t, "v2", filepath.Join(dir, "next"))
	old := gatewaytest.Run(t, filepath.Join(dir, "sluice"), "-c", configured(t, dir, site{backends: []string{b.URL}, extra: management}), "--log-format", "json")
	web := old.Await(t, `"listening","entrypoint":"web","address":"([^"]+)"`)
	admin := old.Await(t, `"listening","entrypoint":"management","address":"([^"]+)"`)
	version := func() string { _, body := ask(t, admin, "/api/gateway/health"); return body }
	if v := version(); !strings.Contains(v, `"v1"`) {
		t.Fatalf("version: %s", v)
	}

	sse := gatewaytest.Dial(t, web)
	sse.Send("GET /sse HTTP/1.1\r\nHost: x\r\n\r\n")
	stream := sse.Response()
	upload := gatewaytest.Dial(t, web)
	upload.Send("POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nx")
	ws := gatewaytest.Dial(t, web)
	ws.Send(websocket)
	ws.Response()
	idle := gatewaytest.Dial(t, web)
	idle.Get("/")
	last := gatewaytest.Dial(t, web) // the last to come is the last to be told of the drain
	last.Get("/")
	gatewaytest.Until(t, "all are dispatched", func() bool { return b.Seen.Load() == 5 })

	var stop atomic.Bool
	var served atomic.Int64
	var load sync.WaitGroup
	for range 8 {
		load.Go(func() { keepAsking(t, web, &stop, &served) })
	}
	// As package managers do it: the old file moves away, the new one gets its name.
	if err := errors.Join(os.Rename(filepath.Join(dir, "sluice"), filepath.Join(dir, "sluice.old")), os.Rename(filepath.Join(dir, "next"), filepath.Join(dir, "sluice"))); err != nil {
		t.Fatal(err)
	}
	pid, gone := upgraded(t, old)
	gatewaytest.Until(t, "the new version answers", func() bool { return strings.Contains(version(), `"v2"`) })
	if n := served.Load(); n == 0 {
		t.Error("no load")
	}
	gatewaytest.Until(t, "the old process drains", func() bool { resp, _ := last.Get("/"); return resp.Close })
	before := served.Load()
	gatewaytest.Until(t, "the new process is under load", func() bool { return served.Load() > before+200 })
	b.Tick()
	ws.Send("y")
	if c, err := ws.R.ReadByte(); c != 'y' || err != nil {
		t.Errorf("upgraded connection: %q %v", c, err)
	}
	upload.Send("y")
	if resp := upload.Response(); resp.StatusCode != 200 {
		t.Errorf("upload: %v", resp.Status)
	}
	if resp, body := idle.Get("/"); body != "one" || !resp.Close {
		t.Errorf("the idle connection's last request: %v, %q", resp.Status, body)
	}
	if _, err := old.Ended(0); err == nil {
		t.Fatal("the old process has not waited for its stream")
	}
	b.Finish()
	events, err := io.ReadAll(stream.Body)
	if err != nil || strings.Count(string(events), "data:") < 2 {
		t.Errorf("stream: %q %v", events, err)
	}
	for _, c := range []*gatewaytest.Client{ws, upload, idle, last, sse} {
		c.Close()
	}
	if code, err := old.Ended(gatewaytest.Patience); code != 0 || err != nil {
		t.Errorf("the old process: %d %v\n%s", code, err, old.Output())
	}
	stop.Store(true)
	load.Wait()
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	gatewaytest.Until(t, "the new process has ended", gone)
}

// keepAsking asks on a connection for as long as that lasts, and then on the next.
func keepAsking(t *testing.T, addr string, stop *atomic.Bool, served *atomic.Int64) {
	for !stop.Load() {
		nc, err := net.DialTimeout("tcp", addr, gatewaytest.Patience)
		if err != nil {
			t.Errorf("connecting: %v", err)
			return
		}
		c := gatewaytest.NewClient(t, nc)
		for last := false; !last; {
			resp, body, err := c.TryGet("/")
			if err != nil || body != "one" {
				t.Errorf("%v %q %v", resp, body, err)
				_ = c.Close()
				return
			}
			served.Add(1)
			last = resp.Close || stop.Load()
		}
		_ = c.Close()
	}
}

// TestUpgradeFails: whatever is wrong with the new binary, the old one goes on, and can still be stopped.
func TestUpgradeFails(t *testing.T) {
	t.Parallel()
	b := gatewaytest.NewBackend(t, "one")
	dir := installed(t, "v1")
	p := gatewaytest.Run(t, filepath.Join(dir, "sluice"), "-c", configured(t, dir, site{backends: []string{b.URL}}), "--log-format", "json")
	web := p.Await(t, `"listening","entrypoint":"web","address":"([^"]+)"`)
	c := gatewaytest.Dial(t, web)
	failures := 0
	for _, text := range []string{"exit 3", "eval echo nonsense '>&'$SLUICE_READY_FD; exec sleep 60"} {
		script(t, dir, text)
		p.Signal(t, syscall.SIGUSR2)
		failures++
		gatewaytest.Until(t, "the failure is logged", func() bool { return strings.Count(p.Output(), "did not take over") == failures })
		if resp, body := c.Get("/"); body != "one" || resp.Close {
			t.Fatalf("after %q: %v %q", text, resp.Status, body)
		}
	}
	// An order to stop does not wait for a binary that is never ready, and drains as a shutdown does: an idle
	// connection is closed at once.
	script(t, dir, "echo $$ >'"+filepath.Join(dir, "child")+"'; exec sleep 60")
	p.Signal(t, syscall.SIGUSR2)
	gatewaytest.Until(t, "the new binary has been started", func() bool { text, _ := os.ReadFile(filepath.Join(dir, "child")); return len(text) > 0 })
	p.Signal(t, syscall.SIGTERM)
	c.Closed()
	c.Close()
	if code, err := p.Ended(gatewaytest.Patience); code != 0 || err != nil {
		t.Fatalf("%d %v\n%s", code, err, p.Output())
	}
	text, err := os.ReadFile(filepath.Join(dir, "child"))
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	gatewaytest.Until(t, "the new binary is ended", func() bool { return errors.Is(syscall.Kill(child, 0), syscall.ESRCH) })
}

// TestSocketActivation: a service manager's sockets are used, not bound again.
func TestSocketActivation(t *testing.T) {
	t.Parallel()
	b := gatewaytest.NewBackend(t, "one")
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	dir := installed(t, "v1")
	path := configured(t, dir, site{entrypoints: fmt.Sprintf("entrypoints \"web\" { address = %q }", l.Addr()), backends: []string{b.URL}})
	early := gatewaytest.Dial(t, l.Addr().String()) // waits in the queue until somebody serves
	early.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=web exec "$0" -c "$1"`, filepath.Join(dir, "sluice"), path)
	cmd.ExtraFiles = []*os.File{file}
	p := gatewaytest.RunCommand(t, cmd)
	if resp := early.Response(); resp.StatusCode != 200 {
		t.Errorf("%v", resp.Status)
	}
	early.Close()
	p.Await(t, "(listening)") // an order to stop that comes before is one to give the start up
	p.Stop(t)
}
