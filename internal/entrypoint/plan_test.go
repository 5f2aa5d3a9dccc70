package entrypoint_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// dialText connects to an address in text form.
func dialText(address string) (*client, error) {
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	return dial(a)
}

// load keeps opening connections to an address and asking one line on each.
type load struct {
	stop   atomic.Bool
	served atomic.Int64
	wg     sync.WaitGroup
	mu     sync.Mutex // guards the rest
	lost   []string
	by     map[string]int // answers, by what answered
}

// startLoad runs several workers. refused tells whether a connection that is refused counts as lost.
func startLoad(addresses []string, refused bool) *load {
	l := &load{by: map[string]int{}}
	for _, address := range addresses {
		for range 4 {
			l.wg.Go(func() {
				for !l.stop.Load() {
					l.one(address, refused)
				}
			})
		}
	}
	return l
}

func (l *load) one(address string, refused bool) {
	c, err := dialText(address)
	if err != nil {
		if refused {
			l.note(address, "", err)
		}
		return
	}
	defer func() { _ = c.Close() }()
	got, err := c.ask("x")
	l.note(address, got, err)
}

func (l *load) note(address, got string, err error) {
	l.served.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.lost = append(l.lost, fmt.Sprintf("%s: %v", address, err))
		return
	}
	l.by[got]++
}

// more waits until n further connections have been answered.
func (l *load) more(t *testing.T, n int64) {
	t.Helper()
	want := l.served.Load() + n
	eventually(t, "the load goes on", func() bool { return l.served.Load() >= want })
}

// end stops the load and checks that nothing was lost.
func (l *load) end(t *testing.T) {
	t.Helper()
	l.stop.Store(true)
	l.wg.Wait()
	if len(l.lost) > 0 {
		t.Errorf("%d connections were lost, the first: %s", len(l.lost), l.lost[0])
	}
}

// Each change of the configuration, thrice to and fro, while connections keep coming.
func TestReloadUnderLoad(t *testing.T) {
	for name, c := range map[string]struct {
		refused     bool                                // a refused connection is a loss
		before      func(x, y string) map[string]string // name to address
		after       func(x, y string) map[string]string
		wantAnswers []string
	}{
		"nothing": {
			true,
			func(x, y string) map[string]string { return map[string]string{"a": x, "b": y} },
			func(x, y string) map[string]string { return map[string]string{"a": x, "b": y} },
			[]string{"a x", "b x"},
		},
		"rename": {
			true,
			func(x, y string) map[string]string { return map[string]string{"a": x, "b": y} },
			func(x, y string) map[string]string { return map[string]string{"c": x, "b": y} },
			[]string{"a x", "b x", "c x"},
		},
		"swap": {
			true,
			func(x, y string) map[string]string { return map[string]string{"a": x, "b": y} },
			func(x, y string) map[string]string { return map[string]string{"a": y, "b": x} },
			[]string{"a x", "b x"},
		},
		"remove and add": {
			false,
			func(x, y string) map[string]string { return map[string]string{"a": x, "b": y} },
			func(x, _ string) map[string]string { return map[string]string{"a": x} },
			[]string{"a x", "b x"},
		},
		"move": {
			false,
			func(x, _ string) map[string]string { return map[string]string{"a": x} },
			func(_, y string) map[string]string { return map[string]string{"a": y} },
			[]string{"a x"},
		},
		"the same place, written differently": {
			true,
			func(x, y string) map[string]string { return map[string]string{"a": x, "b": y} },
			func(x, y string) map[string]string {
				_, port, _ := net.SplitHostPort(x)
				return map[string]string{"a": "0.0.0.0:" + port, "b": y}
			},
			[]string{"a x", "b x"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			x, y := gatewaytest.FreeAddress(t), gatewaytest.FreeAddress(t)
			s := newSet(t, entrypoint.Setup{Sockets: 3})
			srv := newLines()
			options := func(addresses map[string]string) wanted {
				w := wanted{}
				for name, address := range addresses {
					w[name] = &entrypoint.Options{Address: address, HTTP: srv.serve}
				}
				return w
			}
			before, after := options(c.before(x, y)), options(c.after(x, y))
			apply(t, s, before)
			l := startLoad([]string{x, y}, c.refused)
			for range 3 {
				l.more(t, 200)
				apply(t, s, after)
				l.more(t, 200)
				apply(t, s, before)
			}
			l.end(t)
			for _, answer := range c.wantAnswers {
				if l.by[answer] == 0 {
					t.Errorf("nobody got %q", answer)
				}
			}
			if len(l.by) != len(c.wantAnswers) {
				t.Errorf("answers: %v", l.by)
			}
		})
	}
}

// Connections with something under way stay through every change that keeps their entrypoint, and get their answer
// when it is gone.
func TestReloadKeepsConnections(t *testing.T) {
	eachMode(t, func(t *testing.T, setup entrypoint.Setup) {
		s := newSet(t, setup)
		srv := newLines()
		x, y := gatewaytest.FreeAddress(t), gatewaytest.FreeAddress(t)
		a := &entrypoint.Options{Address: x, HTTP: srv.serve}
		b := &entrypoint.Options{Address: y, HTTP: srv.serve}
		apply(t, s, wanted{"a": a, "b": b})
		stays, leaves, idle := mustDial(t, s.Addr("a")), mustDial(t, s.Addr("b")), mustDial(t, s.Addr("b"))
		stays.want(t, "1", "a 1")
		idle.want(t, "1", "b 1")
		if err := leaves.send("hold"); err != nil {
			t.Fatal(err)
		}
		<-srv.held
		apply(t, s, wanted{"a": a})
		if _, err := dialText(y); err == nil {
			t.Error("the removed entrypoint accepts connections")
		}
		stays.want(t, "2", "a 2")
		idle.want(t, "2", "b 2") // the last one
		idle.closed(t)
		eventually(t, "one is left", func() bool { return stats(t, s, "b").Open == 1 })
		if st := stats(t, s, "b"); st.Address != "" {
			t.Errorf("stats of b = %+v", st)
		}
		close(srv.release)
		if got, err := leaves.receive(); err != nil || got != "b hold" {
			t.Errorf("got %q, %v", got, err)
		}
		leaves.closed(t)
		eventually(t, "b is forgotten", func() bool { return len(s.Stats()) == 1 })
		for i := range 10 {
			apply(t, s, wanted{"a": a, "b": b})
			apply(t, s, wanted{"a": a})
			line := fmt.Sprint(i)
			stays.want(t, line, "a "+line)
		}
		if st := stats(t, s, "a"); st.Accepted != 1 {
			t.Errorf("stats of a = %+v", st)
		}
	})
}

// Connections of an entrypoint that is gone are forced at the bound.
func TestFinishBound(t *testing.T) {
	s := newSet(t, entrypoint.Setup{})
	srv := newLines()
	apply(t, s, wanted{"a": {Address: "127.0.0.1:0", HTTP: srv.serve}})
	c := mustDial(t, s.Addr("a"))
	if err := c.send("hold"); err != nil {
		t.Fatal(err)
	}
	<-srv.held
	p := prepare(t, s, nil)
	p.Commit()
	p.Finish(0)
	c.closed(t)
	eventually(t, "a is forgotten", func() bool { return len(s.Stats()) == 0 })
}

func TestRevert(t *testing.T) {
	eachMode(t, func(t *testing.T, setup entrypoint.Setup) {
		s := newSet(t, setup)
		srv, other := newLines(), newLines()
		other.name = "new "
		x, y, z := gatewaytest.FreeAddress(t), gatewaytest.FreeAddress(t), gatewaytest.FreeAddress(t)
		apply(t, s, wanted{"a": {Address: x, HTTP: srv.serve}, "b": {Address: y, HTTP: srv.serve}})
		old := mustDial(t, s.Addr("b"))
		old.want(t, "1", "b 1")

		p := prepare(t, s, wanted{"a": {Address: x, HTTP: other.serve}, "c": {Address: z, HTTP: other.serve}})
		mustDial(t, s.Addr("a")).want(t, "x", "a x") // nothing has changed yet
		if s.Addr("c") != nil || p.Addr("c") == nil || p.Addr("b") != nil {
			t.Errorf("addresses: %v, %v, %v", s.Addr("c"), p.Addr("c"), p.Addr("b"))
		}
		if _, err := s.Prepare(t.Context(), nil); !errors.Is(err, entrypoint.ErrBusy) {
			t.Errorf("a second plan: %v", err)
		}
		p.Commit()
		mustDial(t, s.Addr("a")).want(t, "x", "new a x")
		fresh := mustDial(t, s.Addr("c"))
		fresh.want(t, "x", "new c x")
		old.want(t, "2", "b 2") // nothing is retired before Finish
		queued, err := dialText(y)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = queued.Close() }()
		if err := queued.send("q"); err != nil {
			t.Fatal(err)
		}
		p.Revert(patience)
		if got, err := queued.receive(); err != nil || got != "b q" {
			t.Errorf("the connection that waited got %q, %v", got, err)
		}
		mustDial(t, s.Addr("a")).want(t, "x", "a x")
		mustDial(t, s.Addr("b")).want(t, "x", "b x")
		old.want(t, "3", "b 3")
		fresh.want(t, "last", "new c last")
		fresh.closed(t)
		if _, err := dialText(z); err == nil {
			t.Error("the reverted entrypoint accepts connections")
		}
		p.Finish(0) // out of order: nothing
		old.want(t, "4", "b 4")
	})
}

func TestAbort(t *testing.T) {
	eachMode(t, func(t *testing.T, setup entrypoint.Setup) {
		s := newSet(t, setup)
		srv := newLines()
		x, y := gatewaytest.FreeAddress(t), gatewaytest.FreeAddress(t)
		apply(t, s, wanted{"a": {Address: x, HTTP: srv.serve}})
		c := mustDial(t, s.Addr("a"))
		p := prepare(t, s, wanted{"b": {Address: y, HTTP: srv.serve}})
		p.Abort()
		p.Commit() // out of order: nothing
		c.want(t, "x", "a x")
		if _, err := dialText(y); err == nil {
			t.Error("the aborted entrypoint accepts connections")
		}
		apply(t, s, wanted{"a": {Address: x, HTTP: srv.serve}, "b": {Address: y, HTTP: srv.serve}})
		mustDial(t, s.Addr("b")).want(t, "x", "b x")
	})
}

// A connection that waits on a socket which the plan does not want is served before the socket is closed.
func TestFinishServesTheQueue(t *testing.T) {
	for _, address := range []string{"", "unix"} {
		t.Run("on "+address, func(t *testing.T) {
			eachMode(t, func(t *testing.T, setup entrypoint.Setup) {
				address := address
				if address == "" {
					address = gatewaytest.FreeAddress(t)
				} else {
					address = "unix:" + filepath.Join(t.TempDir(), "s")
				}
				s := newSet(t, setup)
				srv := newLines()
				apply(t, s, wanted{"a": {Address: address, HTTP: srv.serve}})
				addr := s.Addr("a")
				p := prepare(t, s, nil)
				p.Commit()
				var waiting []*client
				for range 20 {
					c := mustDial(t, addr)
					if err := c.send("q"); err != nil {
						t.Fatal(err)
					}
					waiting = append(waiting, c)
				}
				p.Finish(patience)
				for _, c := range waiting {
					if got, err := c.receive(); err != nil || got != "a q" {
						t.Fatalf("got %q, %v", got, err)
					}
				}
			})
		})
	}
}

// lateListener is one on a machine that is busy: a deadline has passed before the listener is asked, every other time.
type lateListener struct {
	*net.TCPListener
	set int
}

func (l *lateListener) SetDeadline(t time.Time) error {
	err := l.TCPListener.SetDeadline(t)
	if l.set++; l.set%2 == 1 {
		time.Sleep(time.Until(t) + time.Millisecond)
	}
	return err
}

// A deadline that has passed before the queue was looked at says nothing about the queue.
func TestFinishAsksAgain(t *testing.T) {
	s := newSet(t, entrypoint.Setup{Listen: func(ctx context.Context, network, address string) (net.Listener, error) {
		l, err := new(net.ListenConfig).Listen(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &lateListener{TCPListener: l.(*net.TCPListener)}, nil
	}})
	srv := newLines()
	apply(t, s, wanted{"a": {Address: "127.0.0.1:0", HTTP: srv.serve}})
	addr := s.Addr("a")
	p := prepare(t, s, nil)
	p.Commit()
	var waiting []*client
	for range 3 { // one is in the hands of the loop that accepts
		c := mustDial(t, addr)
		if err := c.send("q"); err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, c)
	}
	p.Finish(patience)
	for _, c := range waiting {
		if got, err := c.receive(); err != nil || got != "a q" {
			t.Errorf("got %q, %v", got, err)
		}
	}
}

// The set is drained between the steps of a plan.
func TestDrainEndsThePlan(t *testing.T) {
	for _, committed := range []bool{false, true} {
		t.Run(fmt.Sprint("committed ", committed), func(t *testing.T) {
			s := newSet(t, entrypoint.Setup{})
			srv := newLines()
			apply(t, s, wanted{"a": {Address: gatewaytest.FreeAddress(t), HTTP: srv.serve}})
			old := mustDial(t, s.Addr("a"))
			old.want(t, "1", "a 1")
			p := prepare(t, s, wanted{"b": {Address: gatewaytest.FreeAddress(t), HTTP: srv.serve}})
			b := p.Addr("b").String()
			if committed {
				p.Commit()
			}
			if n, err := s.Shutdown(t.Context(), drain.Prompt); n != 0 || err != nil {
				t.Errorf("Shutdown = %d, %v", n, err)
			}
			old.closed(t)
			p.Commit()
			p.Finish(0)
			p.Revert(0)
			if _, err := dialText(b); err == nil {
				t.Error("a socket of the plan is still open")
			}
		})
	}
}
