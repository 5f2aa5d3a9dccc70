package entrypoint_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// listen occupies an address, with options set on the socket.
func listen(t *testing.T, network, address string, options ...int) net.Listener {
	t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		cerr := c.Control(func(fd uintptr) {
			for _, o := range options {
				err = errors.Join(err, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, o, 1))
			}
		})
		return errors.Join(err, cerr)
	}}
	ln, err := lc.Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

// An address that somebody listens on is refused, also when they would share it.
func TestOccupiedAddress(t *testing.T) {
	for name, c := range map[string]struct {
		network, taken string
		options        []int
		wanted         string // P is the port
	}{
		"plain":                        {"tcp4", "127.0.0.1:0", nil, "127.0.0.1:P"},
		"one that shares":              {"tcp4", "127.0.0.1:0", []int{unix.SO_REUSEPORT}, "127.0.0.1:P"},
		"one that shares and reuses":   {"tcp4", "127.0.0.1:0", []int{unix.SO_REUSEPORT, unix.SO_REUSEADDR}, "127.0.0.1:P"},
		"one address, all are wanted":  {"tcp4", "127.0.0.1:0", []int{unix.SO_REUSEPORT}, "0.0.0.0:P"},
		"all addresses, one is wanted": {"tcp4", "0.0.0.0:0", []int{unix.SO_REUSEPORT}, "127.0.0.1:P"},
		"IPv4, both are wanted":        {"tcp4", "127.0.0.1:0", []int{unix.SO_REUSEPORT}, ":P"},
		"both, IPv4 is wanted":         {"tcp", ":0", []int{unix.SO_REUSEPORT}, "127.0.0.1:P"},
		"IPv6":                         {"tcp6", "[::1]:0", []int{unix.SO_REUSEPORT}, "[::1]:P"},
		"by name":                      {"tcp4", "127.0.0.1:0", nil, "localhost:P"},
	} {
		t.Run(name, func(t *testing.T) {
			ln := listen(t, c.network, c.taken, c.options...)
			_, port, _ := net.SplitHostPort(ln.Addr().String())
			address := strings.Replace(c.wanted, "P", port, 1)
			s := newSet(t, entrypoint.Setup{})
			_, err := s.Prepare(t.Context(), wanted{"web": {Address: address, HTTP: newLines().serve}})
			var bind *entrypoint.BindError
			if !errors.As(err, &bind) || !errors.Is(err, unix.EADDRINUSE) {
				t.Fatalf("Prepare = %v", err)
			}
			if bind.Entrypoint != "web" || bind.Address != address {
				t.Errorf("error of %q, %q", bind.Entrypoint, bind.Address)
			}
			if want := "entrypoint web: binding " + address + ": bind: address already in use"; err.Error() != want {
				t.Errorf("text %q, want %q", err, want)
			}
		})
	}
}

// Every error is reported, and then nothing stays bound.
func TestAllBindErrorsAtOnce(t *testing.T) {
	one, two := listen(t, "tcp4", "127.0.0.1:0").Addr().String(), listen(t, "tcp4", "127.0.0.1:0").Addr().String()
	s := newSet(t, entrypoint.Setup{})
	srv := newLines()
	kept := &entrypoint.Options{Address: gatewaytest.FreeAddress(t), HTTP: srv.serve}
	apply(t, s, wanted{"kept": kept})
	free := gatewaytest.FreeAddress(t)
	_, err := s.Prepare(t.Context(), wanted{
		"free": {Address: free}, "one": {Address: one}, "two": {Address: two}, "bad": {Address: "nonsense"}, "kept": kept,
		"twice": {Address: kept.Address}, "lost": {Address: "no-such-host.invalid:80"},
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, part := range []string{
		"entrypoint one: binding " + one + ": bind: address already in use",
		"entrypoint two: binding " + two + ": bind: address already in use",
		"entrypoint bad: binding nonsense: is not host:port or unix:/path",
		"entrypoint twice: binding " + kept.Address + ": entrypoint kept has the same address",
		"entrypoint lost: binding no-such-host.invalid:80: resolving no-such-host.invalid: ",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in:\n%v", part, err)
		}
	}
	if n := strings.Count(err.Error(), "\n"); n != 4 {
		t.Errorf("%d errors:\n%v", n+1, err)
	}
	listen(t, "tcp4", free) // would fail if it were bound still
	mustDial(t, s.Addr("kept")).want(t, "x", "kept x")
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	w := wanted{"a": {Address: "unix:" + path, HTTP: newLines().serve}}
	s := newSet(t, entrypoint.Setup{})
	busy := listen(t, "unix", path)
	if _, err := s.Prepare(t.Context(), w); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("with a listener there: %v", err)
	}
	busy.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = busy.Close()
	apply(t, s, w) // the file is stale now
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o660 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	mustDial(t, s.Addr("a")).want(t, "x", "a x")
	apply(t, s, nil)
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is left behind: %v", err)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prepare(t.Context(), w); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("with a file there: %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("the file was touched: %q, %v", b, err)
	}
}

// What accepted connections need is set on the listening socket, and they have it.
func TestSocketOptions(t *testing.T) {
	s := newSet(t, entrypoint.Setup{})
	got := make(chan [4]int, 1)
	apply(t, s, wanted{"a": {Address: "127.0.0.1:0", HTTP: func(c conn.Conn, _ *drain.Tracker) {
		fd := c.(*conn.Raw).FD()
		var v [4]int
		for i, o := range [][2]int{{unix.IPPROTO_TCP, unix.TCP_NODELAY}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE}, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}} {
			v[i], _ = unix.GetsockoptInt(fd, o[0], o[1])
		}
		v[3], _ = unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		got <- v
	}}})
	mustDial(t, s.Addr("a"))
	if v := <-got; v != [4]int{1, 1, 15, unix.FD_CLOEXEC} {
		t.Errorf("nodelay, keep-alive, idle, close-on-exec = %v", v)
	}
}

// lockedBuffer is a log that may be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Errors of accept: those of one connection are passed over, those of the process pause accepting and are logged once.
func TestAcceptErrors(t *testing.T) {
	for name, c := range map[string]struct {
		errno  syscall.Errno
		pauses bool
	}{
		"no descriptors in the process": {syscall.EMFILE, true},
		"none in the system":            {syscall.ENFILE, true},
		"no memory":                     {syscall.ENOMEM, true},
		"the client has gone":           {syscall.ECONNABORTED, false},
		"interrupted":                   {syscall.EINTR, false},
	} {
		t.Run(name, func(t *testing.T) {
			var log lockedBuffer
			s := newSet(t, entrypoint.Setup{Sockets: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			var left atomic.Int32
			s.SetAccept(func(fd int) (int, netip.AddrPort, syscall.Errno) {
				if left.Load() > 0 {
					left.Add(-1)
					return -1, netip.AddrPort{}, c.errno
				}
				return conn.Accept4(fd)
			})
			apply(t, s, wanted{"a": {Address: "127.0.0.1:0", HTTP: newLines().serve}})
			for row := 1; row <= 2; row++ {
				left.Store(3)
				mustDial(t, s.Addr("a")).want(t, "x", "a x")
				wantErrors, wantLines := uint64(0), 0
				if c.pauses {
					wantErrors, wantLines = uint64(3*row), row
				}
				if st := stats(t, s, "a"); st.AcceptErrors != wantErrors {
					t.Errorf("row %d: %d errors counted, want %d", row, st.AcceptErrors, wantErrors)
				}
				if n := strings.Count(log.String(), "accepting is paused"); n != wantLines {
					t.Errorf("row %d: %d lines, want %d:\n%s", row, n, wantLines, log.String())
				}
				eventually(t, "it says that it goes on", func() bool { return strings.Count(log.String(), "accepting goes on") == wantLines })
			}
		})
	}
}

// A pause does not hold up a shutdown.
func TestDrainDuringPause(t *testing.T) {
	s := newSet(t, entrypoint.Setup{Sockets: 1})
	s.SetAccept(func(int) (int, netip.AddrPort, syscall.Errno) { return -1, netip.AddrPort{}, syscall.EMFILE })
	apply(t, s, wanted{"a": {Address: "127.0.0.1:0", HTTP: newLines().serve}})
	mustDial(t, s.Addr("a"))
	eventually(t, "accepting is paused", func() bool { return stats(t, s, "a").AcceptErrors > 0 })
	if _, err := s.Shutdown(t.Context(), drain.Prompt); err != nil {
		t.Error(err)
	}
}

// In a process that has truly run out of descriptors, accepting goes on once some are free.
func TestOutOfDescriptors(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	s := newSet(t, entrypoint.Setup{Sockets: 1})
	apply(t, s, wanted{"a": {Address: "127.0.0.1:0", HTTP: newLines().serve}})
	first := mustDial(t, s.Addr("a"))
	first.want(t, "x", "a x")
	tight := limit
	tight.Cur = uint64(highestDescriptor(t)) + 4 // three more, so that client and server do not get as many
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &tight); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) }()
	var clients []net.Conn
	defer func() {
		for _, c := range clients {
			_ = c.Close()
		}
	}()
	for {
		d, err := net.DialTimeout("tcp", s.Addr("a").String(), patience)
		if err != nil {
			break
		}
		clients = append(clients, d)
	}
	if len(clients) == 0 {
		t.Fatal("no connection fitted")
	}
	eventually(t, "accepting is paused", func() bool { return stats(t, s, "a").AcceptErrors > 0 })
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	last := mustDial(t, s.Addr("a"))
	last.want(t, "x", "a x")
	first.want(t, "y", "a y")
}

func highestDescriptor(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	highest := 0
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			highest = max(highest, n)
		}
	}
	return highest
}

// A context that ends stops the resolution of names.
func TestPrepareIsBounded(t *testing.T) {
	s := newSet(t, entrypoint.Setup{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Prepare(ctx, wanted{"a": {Address: "some-name.invalid:80", HTTP: newLines().serve}}); err == nil {
		t.Error("no error")
	}
}
