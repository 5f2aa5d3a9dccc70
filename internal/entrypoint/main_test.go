package entrypoint_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
)

func TestMain(m *testing.M) {
	if os.Getenv(successorEnv) != "" {
		os.Exit(successor())
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait of these tests; only a failure takes that long.
const patience = 20 * time.Second

// lines serves connections of a small protocol: each line is answered by the entrypoint's name and the line. The line
// "hold" is answered only after release; "panic" panics.
type lines struct {
	name    string // said in front of the entrypoint's
	release chan struct{}
	held    chan struct{} // one for each held line
}

func newLines() *lines { return &lines{release: make(chan struct{}), held: make(chan struct{}, 1000)} }

type lineConn struct {
	ticket  drain.Ticket
	c       conn.Conn
	last    atomic.Bool
	mu      sync.Mutex // guards idle
	idle    bool
	prompt  bool
	aborted chan struct{}
	once    sync.Once
}

func (l *lineConn) Drain(mode drain.Mode) {
	l.last.Store(true)
	if mode != drain.Prompt {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prompt = true
	if l.idle {
		_ = l.c.SetReadDeadline(time.Now().Add(time.Millisecond)) // what has arrived is still read
	}
}

func (l *lineConn) Force() {
	l.once.Do(func() { close(l.aborted) })
	_ = l.c.Close()
}

func (l *lineConn) setIdle(idle bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = idle
	if idle && l.prompt {
		_ = l.c.SetReadDeadline(time.Now().Add(time.Millisecond))
	}
}

func (s *lines) serve(c conn.Conn, live *drain.Tracker) {
	defer func() { _ = c.Close() }()
	l := &lineConn{c: c, aborted: make(chan struct{})}
	live.Enter(&l.ticket, l)
	defer l.ticket.Leave()
	r := bufio.NewReader(c)
	for {
		l.setIdle(true)
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		l.setIdle(false)
		switch line {
		case "panic\n":
			panic("asked to")
		case "hold\n":
			s.held <- struct{}{}
			select {
			case <-s.release:
			case <-l.aborted:
				return
			}
		}
		last := l.last.Load() // not after the answer: whoever reads it may begin a drain at once
		if _, err := io.WriteString(c, s.name+c.Info().Entrypoint+" "+line); err != nil || last {
			return
		}
	}
}

// mode is how a set takes connections.
type mode struct {
	name  string
	setup entrypoint.Setup
}

var modes = []mode{
	{"kernel", entrypoint.Setup{Sockets: 3}},
	{"plain", entrypoint.Setup{Listen: (&net.ListenConfig{}).Listen}},
}

func eachMode(t *testing.T, f func(t *testing.T, setup entrypoint.Setup)) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) { f(t, m.setup) })
	}
}

// newSet makes a set that is shut down, with everything forced, when the test ends.
func newSet(t *testing.T, setup entrypoint.Setup) *entrypoint.Set {
	t.Helper()
	if setup.Logger == nil {
		setup.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	s := entrypoint.NewSet(setup)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := s.Shutdown(ctx, drain.Prompt); err != nil {
			t.Errorf("shutdown: %v", err)
		}
		for _, st := range s.Stats() {
			if st.Open != 0 {
				t.Errorf("%s still counts %d connections", st.Name, st.Open)
			}
		}
	})
	return s
}

type wanted = map[string]*entrypoint.Options

// apply prepares, commits and finishes.
func apply(t *testing.T, s *entrypoint.Set, w wanted) {
	t.Helper()
	p := prepare(t, s, w)
	p.Commit()
	p.Finish(patience)
}

func prepare(t *testing.T, s *entrypoint.Set, w wanted) *entrypoint.Plan {
	t.Helper()
	p, err := s.Prepare(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// client is one connection that speaks lines.
type client struct {
	net.Conn
	r *bufio.Reader
}

func dial(addr net.Addr) (*client, error) {
	d := net.Dialer{Timeout: patience}
	network, text := addr.Network(), addr.String()
	if t, ok := addr.(*net.TCPAddr); ok && t.IP.IsUnspecified() {
		text = fmt.Sprintf("127.0.0.1:%d", t.Port)
	}
	c, err := d.Dial(network, text)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	return &client{c, bufio.NewReader(c)}, nil
}

func mustDial(t *testing.T, addr net.Addr) *client {
	t.Helper()
	c, err := dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func dialTLS(addr net.Addr) (*client, error) {
	c, err := dial(addr)
	if err != nil {
		return nil, err
	}
	tc := tls.Client(c.Conn, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
	if err := tc.Handshake(); err != nil {
		_ = c.Close()
		return nil, err
	}
	return &client{tc, bufio.NewReader(tc)}, nil
}

func (c *client) send(line string) error {
	_, err := io.WriteString(c, line+"\n")
	return err
}

func (c *client) receive() (string, error) {
	line, err := c.r.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

func (c *client) ask(line string) (string, error) {
	if err := c.send(line); err != nil {
		return "", err
	}
	return c.receive()
}

func (c *client) want(t *testing.T, line, answer string) {
	t.Helper()
	if got, err := c.ask(line); err != nil || got != answer {
		t.Fatalf("asked %q: got %q, %v; want %q", line, got, err, answer)
	}
}

// closed checks that the server ends the connection without another byte.
func (c *client) closed(t *testing.T) {
	t.Helper()
	if b, err := c.r.ReadByte(); err == nil {
		t.Errorf("got byte %q on a connection that should be closed", b)
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection was not closed")
	}
}

// once opens a connection, asks one line and closes.
func once(addr net.Addr) (string, error) {
	c, err := dial(addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	return c.ask("x")
}

func stats(t *testing.T, s *entrypoint.Set, name string) entrypoint.Stats {
	t.Helper()
	for _, st := range s.Stats() {
		if st.Name == name {
			return st
		}
	}
	t.Fatalf("no statistics of %s", name)
	return entrypoint.Stats{}
}

// eventually waits until ok, which another goroutine makes true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("waited in vain: ", what)
		}
	}
}

func contextWithPatience() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}
