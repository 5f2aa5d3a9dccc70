package entrypoint_test

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// successorEnv makes this test's binary a process that takes sockets over. It holds the names of the descriptors from
// 3 on, a semicolon, and the wanted entrypoints as name=address, separated by commas.
const successorEnv = "SLUICE_TEST_SUCCESSOR"

// successor serves what it has inherited until its standard input ends, and says what it bound.
func successor() int {
	names, specs, _ := strings.Cut(os.Getenv(successorEnv), ";")
	var fds []int
	for i := range strings.Split(names, ":") {
		fds = append(fds, 3+i)
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	in := entrypoint.Inherit(strings.Split(names, ":"), fds, log)
	s := entrypoint.NewSet(entrypoint.Setup{Logger: log, Inherited: in})
	srv := newLines()
	srv.name = "successor "
	w := wanted{}
	for spec := range strings.SplitSeq(specs, ",") {
		name, address, _ := strings.Cut(spec, "=")
		w[name] = &entrypoint.Options{Address: address, HTTP: srv.serve}
	}
	ctx, cancel := contextWithPatience()
	defer cancel()
	p, err := s.Prepare(ctx, w)
	if err != nil {
		fmt.Println("error:", err)
		_ = in.Close()
		return 0
	}
	p.Commit()
	p.Finish(0)
	_ = in.Close()
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	if _, err := s.Shutdown(ctx, drain.Prompt); err != nil {
		fmt.Println("error:", err)
	}
	return 0
}

// process is a running successor.
type process struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	said   string // its first line
	stderr lockedBuffer
}

func startSuccessor(t *testing.T, names []string, files []*os.File, specs string) *process {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(exe)}
	p.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", successorEnv+"="+strings.Join(names, ":")+";"+specs)
	p.cmd.ExtraFiles = files
	p.cmd.Stderr = &p.stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		_ = f.Close()
	}
	p.said, err = bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Error(err)
	}
	p.said = strings.TrimSpace(p.said)
	t.Cleanup(func() { p.end(t) })
	return p
}

func (p *process) end(t *testing.T) {
	t.Helper()
	if p.stdin == nil {
		return
	}
	_ = p.stdin.Close()
	p.stdin = nil
	timer := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("successor: %v\n%s", err, p.stderr.String())
	}
}

// A process hands its sockets over while connections keep coming: none is lost, whoever serves it.
func TestHandOver(t *testing.T) {
	path := "unix:" + filepath.Join(t.TempDir(), "s")
	old := newSet(t, entrypoint.Setup{Sockets: 3})
	srv := newLines()
	addrA, addrB := gatewaytest.FreeAddress(t), gatewaytest.FreeAddress(t)
	apply(t, old, wanted{
		"a": {Address: addrA, HTTP: srv.serve}, "b": {Address: addrB, HTTP: srv.serve}, "local": {Address: path, HTTP: srv.serve},
	})
	local := old.Addr("local")
	l := startLoad([]string{addrA, addrB}, true)
	l.more(t, 200)
	stays := mustDial(t, old.Addr("a"))
	stays.want(t, "1", "a 1")

	names, files, err := old.Files()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	if got := strings.Join(names, " "); got != "a a a b b b local" {
		t.Errorf("names: %s", got)
	}
	names, files2, err := old.Files() // in the order of the files
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		_ = f.Close()
	}
	p := startSuccessor(t, names, files2, "a="+addrA+",b="+addrB+",local="+path)
	if p.said != "ready" {
		t.Fatalf("successor: %s", p.said)
	}
	l.more(t, 200) // both serve
	old.Drain(drain.Gentle)
	l.more(t, 400)
	l.end(t)
	for _, answer := range []string{"a x", "b x", "successor a x", "successor b x"} {
		if l.by[answer] == 0 {
			t.Errorf("nobody got %q: %v", answer, l.by)
		}
	}
	stays.want(t, "2", "a 2") // one more of an open connection
	stays.closed(t)
	if err := old.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	mustDial(t, local).want(t, "x", "successor local x") // the path is still there
	p.end(t)
	if _, err := dialText(addrA); err == nil {
		t.Error("somebody still listens")
	}
	if strings.Contains(p.stderr.String(), "not used") {
		t.Errorf("the successor left something: %s", p.stderr.String())
	}
}

func TestInherited(t *testing.T) {
	for name, c := range map[string]struct {
		names   string // of two sockets: 127.0.0.1:X and [::1]:Y
		wanted  string
		said    string // "" ready
		warning string
		by      string // what answers at X; "" nothing
	}{
		"by name":              {"a:b", "a=127.0.0.1:X,b=[::1]:Y", "", "", "successor a x"},
		"by address":           {"unknown:unknown", "b=[::1]:Y,a=127.0.0.1:X", "", "", "successor a x"},
		"a service manager's":  {"sluice.socket:sluice.socket", "a=127.0.0.1:X", "", "[::1]:Y", "successor a x"},
		"port zero takes any":  {"a:b", "a=127.0.0.1:0,b=[::1]:0", "", "", "successor a x"},
		"one is not wanted":    {"a:c", "a=127.0.0.1:X", "", "[::1]:Y", "successor a x"},
		"another address":      {"a:b", "a=127.0.0.1:1,b=[::1]:Y", "error: entrypoint a: binding 127.0.0.1:1: the inherited socket of that name is bound to 127.0.0.1:X", "", ""},
		"one name, two places": {"a:a", "a=127.0.0.1:X", "error: entrypoint a: binding 127.0.0.1:X: the inherited socket of that name is bound to [::1]:Y", "", ""},
		"another's name":       {"other:other", "a=127.0.0.1:X", "error: entrypoint a: binding 127.0.0.1:X: bind: address already in use", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			four, six := listen(t, "tcp4", "127.0.0.1:0"), listen(t, "tcp6", "[::1]:0")
			fill := strings.NewReplacer(
				"127.0.0.1:X", four.Addr().String(), "[::1]:Y", six.Addr().String(),
			)
			var files []*os.File
			for _, ln := range []net.Listener{four, six} {
				f, err := ln.(*net.TCPListener).File()
				if err != nil {
					t.Fatal(err)
				}
				files = append(files, f)
			}
			p := startSuccessor(t, strings.Split(c.names, ":"), files, fill.Replace(c.wanted))
			said := c.said
			if said == "" {
				said = "ready"
			}
			if p.said != fill.Replace(said) {
				t.Fatalf("said %q, want %q", p.said, fill.Replace(said))
			}
			addr := four.Addr()
			_, _ = four.Close(), six.Close()
			if c.by != "" {
				mustDial(t, addr).want(t, "x", c.by)
			}
			p.end(t)
			log := p.stderr.String()
			if warning := fill.Replace(c.warning); (warning == "") == strings.Contains(log, "not used") || !strings.Contains(log, warning) {
				if c.said == "" {
					t.Errorf("log, which should warn about %q:\n%s", warning, log)
				}
			}
		})
	}
}

// What is neither a listening stream socket nor one of UDP for everybody is refused with a warning.
func TestInheritRefuses(t *testing.T) {
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	connected, err := net.Dial("udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = connected.Close() }()
	udpFile, err := connected.(*net.UDPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = udpFile.Close() }()
	gram, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = gram.Close() }()
	gramFile, err := gram.File()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = gramFile.Close() }()
	var fds []int
	for _, f := range []*os.File{file, gramFile, udpFile} {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	var log lockedBuffer
	in := entrypoint.Inherit([]string{"a"}, append(fds, 1<<20), slog.New(slog.NewTextHandler(&log, nil)))
	if n := strings.Count(log.String(), "is not used"); n != 4 {
		t.Errorf("%d warnings, want 4:\n%s", n, log.String())
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
}

// A part with a listener of its own takes an inherited socket from the same pool.
func TestInheritedListener(t *testing.T) {
	ln := listen(t, "tcp4", "127.0.0.1:0")
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = f.Close(), ln.Close()
	in := entrypoint.Inherit([]string{"management"}, []int{fd}, nil)
	defer func() { _ = in.Close() }()
	if other, err := in.Listener("web", ln.Addr().String()); other != nil || err != nil {
		t.Errorf("another name: %v, %v", other, err)
	}
	got, err := in.Listener("management", ln.Addr().String())
	if err != nil || got == nil {
		t.Fatal(got, err)
	}
	defer func() { _ = got.Close() }()
	if got.Addr().String() != ln.Addr().String() {
		t.Errorf("address %s", got.Addr())
	}
	go func() {
		c, err := got.Accept()
		if err == nil {
			_, _ = io.WriteString(c, "hello\n")
			_ = c.Close()
		}
	}()
	if line, err := mustDial(t, ln.Addr()).receive(); err != nil || line != "hello" {
		t.Errorf("got %q, %v", line, err)
	}
}
