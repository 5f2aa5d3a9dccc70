package gatewaytest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/conn"
)

// Patience bounds whatever a test waits for. It is not a duration that anything should take.
const Patience = 20 * time.Second

// logDelay is how long a line of the access log waits. The second of production would be most of what a test takes.
const logDelay = 5 * time.Millisecond

// Gateway is a data plane inside the test, made by the constructor that production uses.
type Gateway struct {
	*app.App
	// Lines are the access log's entries as they are written.
	Lines *Lines
	// Process is the process log.
	Process *Output
	t       testing.TB
}

// Option changes how a gateway is started.
type Option func(*app.Options)

// InMemory puts the gateway on a network of the test's own; its listening and dialing stay off the kernel.
func InMemory(m *conn.Memory) Option { return func(o *app.Options) { o.Network = memory{m} } }

// FromFile reads the configuration from a file, which the gateway may watch; the text given to Start is written there.
func FromFile(path string) Option {
	return func(o *app.Options) { o.ConfigPath = path }
}

// With changes the options at will.
func With(f func(*app.Options)) Option { return f }

type memory struct{ m *conn.Memory }

func (n memory) Listen(_ context.Context, _, address string) (net.Listener, error) {
	return n.m.Listen(address)
}

func (n memory) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return n.m.DialNet(ctx, network, address)
}

// Start runs a gateway with a configuration text until the test ends, or Stop. Both fail the test when anything is
// left then: connections, generations, pools, buckets, checks. Goroutines are for goleak in the package's TestMain.
func Start(t testing.TB, acl string, opts ...Option) *Gateway {
	t.Helper()
	g, err := TryStart(t, acl, opts...)
	if err != nil {
		t.Fatalf("starting: %v", err)
	}
	return g
}

// TryStart is Start for configurations that may be refused.
func TryStart(t testing.TB, acl string, opts ...Option) (*Gateway, error) {
	t.Helper()
	g := &Gateway{t: t, Process: &Output{}}
	o := app.Options{Version: "test", LogDelay: logDelay, Logger: slog.New(slog.NewJSONHandler(g.Process, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	for _, opt := range opts {
		opt(&o)
	}
	if o.ConfigPath == "" {
		o.Text = acl
	} else if acl != "" {
		if err := os.WriteFile(o.ConfigPath, []byte(acl), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if o.Stdout == nil {
		var end func()
		g.Lines, o.Stdout, end = newLines(t)
		t.Cleanup(end)
	}
	a, err := app.Start(t.Context(), o)
	if err != nil {
		return nil, err
	}
	g.App = a
	t.Cleanup(g.Stop)
	return g, nil
}

// Stop shuts down and checks that nothing is left. Stopping twice does nothing more.
func (g *Gateway) Stop() {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := g.Shutdown(ctx); err != nil {
		g.t.Errorf("stopping: %v", err)
		g.Force()
		<-g.Done()
	}
	if left := g.Residue(); left != (app.Residue{}) {
		g.t.Errorf("left behind: %+v", left)
	}
	if g.t.Failed() {
		g.t.Logf("process log:\n%s", tail(g.Process.String(), 8192))
	}
}

// Addr is where an entrypoint, or management under its name, listens.
func (g *Gateway) Addr(name string) string {
	g.t.Helper()
	a := g.Bound()[name]
	if a == "" {
		g.t.Fatalf("%s is not bound: %v", name, g.Bound())
	}
	return a
}

// Apply puts another text into force and fails the test when it is refused.
func (g *Gateway) Apply(acl string) {
	g.t.Helper()
	if err := g.ReloadText(g.t.Context(), acl); err != nil {
		g.t.Fatalf("reload: %v\n%s", err, acl)
	}
}

// Line is one entry of the access log.
type Line map[string]any

// Text is a member that is a string; "" when it is not there.
func (l Line) Text(member string) string { s, _ := l[member].(string); return s }

// Number is a member that is a number; 0 when it is not there.
func (l Line) Number(member string) float64 { n, _ := l[member].(float64); return n }

// Lines collects access log entries.
type Lines struct {
	next chan string
	raw  Output
}

func newLines(t testing.TB) (*Lines, *os.File, func()) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l := &Lines{next: make(chan string, 1<<16)}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(l.next)
		for s := bufio.NewScanner(r); s.Scan(); {
			fmt.Fprintln(&l.raw, s.Text())
			select {
			case l.next <- s.Text():
			default: // nobody asks for so many
			}
		}
	})
	return l, w, func() {
		_ = w.Close()
		reading.Wait()
		_ = r.Close()
	}
}

// Next waits for the next entry.
func (l *Lines) Next(t testing.TB) Line {
	t.Helper()
	select {
	case s, ok := <-l.next:
		if !ok {
			t.Fatal("the access log has ended")
		}
		var line Line
		if err := json.Unmarshal([]byte(s), &line); err != nil {
			t.Fatalf("access log line %q: %v", s, err)
		}
		return line
	case <-time.After(Patience):
		t.Fatal("no access log line")
		return nil
	}
}

// None fails the test when another entry has come. It is of use after Stop, when all are written.
func (l *Lines) None(t testing.TB) {
	t.Helper()
	select {
	case s, ok := <-l.next:
		if ok {
			t.Errorf("one access log line too many: %s", s)
		}
	default:
	}
}

// String is everything that was written so far.
func (l *Lines) String() string { return l.raw.String() }

// Until looks again and again until check is true.
func Until(t testing.TB, what string, check func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !check(); {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", Patience, what)
		}
		time.Sleep(2 * time.Millisecond) // looking again, not hoping: the end is check's to say
	}
}

// Metric is the value of a series in a text exposition, such as `name{label="x"}`; -1 when it is not there.
func Metric(exposition, series string) float64 {
	for line := range strings.SplitSeq(exposition, "\n") {
		if v, ok := strings.CutPrefix(line, series+" "); ok {
			var f float64
			if _, err := fmt.Sscan(v, &f); err == nil {
				return f
			}
		}
	}
	return -1
}

// NewMemory is an empty network for InMemory.
func NewMemory() *conn.Memory { return conn.NewMemory() }
