package worker_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/fabric"
	"github.com/sluice-proxy/sluice/internal/worker"
)

// tables are all tables of rules in a namespace, with the number of rules in each.
func tables(t *testing.T, n *fabric.Namespace) map[string]int {
	t.Helper()
	found := make(map[string]int)
	err := n.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		all, err := c.ListTables()
		if err != nil {
			return err
		}
		for _, table := range all {
			found[table.Name] += 0
			chains, err := c.ListChains()
			if err != nil {
				return err
			}
			for _, chain := range chains {
				if chain.Table.Name != table.Name || chain.Table.Family != table.Family {
					continue
				}
				rules, err := c.GetRules(table, chain)
				if err != nil {
					return err
				}
				found[table.Name] += len(rules)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Rules are never stacked up, and none stays: not even those that an earlier worker has installed for another family.
func TestRulesReplaceThemselves(t *testing.T) {
	n := network(t, newRun(t), "a")
	var k worker.Kernel
	if err := k.Remove(n.Gateway); err != nil {
		t.Errorf("removing rules that are not there: %v", err)
	}
	for _, f := range []nftables.TableFamily{nftables.TableFamilyINet, nftables.TableFamilyIPv6} {
		err := n.Gateway.Do(func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			c.AddTable(&nftables.Table{Family: f, Name: "sluice-actor"})
			c.AddTable(&nftables.Table{Family: f, Name: "of-others"})
			return c.Flush()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if err := k.Install(n.Gateway); err != nil {
			t.Fatal(err)
		}
		if got := tables(t, n.Gateway); len(got) != 2 || got["sluice-actor"] != 7 {
			t.Fatalf("tables and their rules: %v, want seven rules in one of ours", got)
		}
	}
	if err := k.Remove(n.Gateway); err != nil {
		t.Fatal(err)
	}
	if got := tables(t, n.Gateway); len(got) != 1 {
		t.Errorf("tables after removing: %v", got)
	}
	if got := tables(t, n.Actor); len(got) != 0 {
		t.Errorf("tables in the actor's namespace: %v", got)
	}
}

// expectReset wants a connection that was reset while it was dialed, or after.
func expectReset(t *testing.T, c *conn.Raw, err error) {
	t.Helper()
	if err == nil {
		_, err = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("not reset: %v", err)
	}
}

// A socket that is not of the actor's namespace is closed, whatever brought it about.
func TestForeignSocketIsClosed(t *testing.T) {
	r := newRun(t)
	a, b := network(t, r, "a"), network(t, r, "b")
	l, err := a.Gateway.Listen(netip.MustParseAddrPort("169.254.17.1:15001"))
	if err != nil {
		t.Fatal(err)
	}
	var counts worker.Counts
	var wg sync.WaitGroup
	wg.Go(func() { worker.AcceptForeign(l, b.Gateway, &counts) })
	c, err := a.Actor.Dial(t.Context(), netip.MustParseAddrPort("169.254.17.1:15001"))
	expectReset(t, c, err)
	_ = l.Close()
	wg.Wait()
	if counts.Foreign.Load() != 1 {
		t.Errorf("%d foreign sockets were counted", counts.Foreign.Load())
	}
}

// Without rules the kernel does not know where a connection was meant to go: it is not carried anywhere.
func TestUnknownDestinationIsClosed(t *testing.T) {
	n := network(t, newRun(t), "a")
	l, err := n.Gateway.Listen(netip.MustParseAddrPort("169.254.17.1:15001"))
	if err != nil {
		t.Fatal(err)
	}
	var counts worker.Counts
	var wg sync.WaitGroup
	wg.Go(func() { worker.AcceptForeign(l, n.Gateway, &counts) })
	c, err := n.Actor.Dial(t.Context(), netip.MustParseAddrPort("169.254.17.1:15001"))
	expectReset(t, c, err)
	_ = l.Close()
	wg.Wait()
	if n := counts.Unknown.Load() + counts.Loops.Load(); n != 1 {
		t.Errorf("%d were counted as unknown or loops", n)
	}
}

// What is beyond a bound is reset or refused.
func TestI5_ConnectionsAreBounded(t *testing.T) {
	block, asked := make(chan struct{}), make(chan struct{}, 10)
	h := newHost(t, newRun(t), func(o *worker.Options) {
		o.Bounds = worker.Bounds{Captured: 2, Tunnels: 3, Dial: patience}
		o.Egress = func(context.Context, worker.Actor) (worker.Egress, func() error, error) {
			out := func(ctx context.Context, _ netip.AddrPort) (conn.Conn, error) {
				asked <- struct{}{}
				select {
				case <-block:
				case <-ctx.Done():
				}
				return nil, errors.New("not today")
			}
			return out, func() error { return nil }, nil
		}
	})
	h.activate("demo/a")
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { h.dial("demo/a", "tcp", "203.0.113.7:443") })
	}
	<-asked
	<-asked
	if got := h.dial("demo/a", "tcp", "203.0.113.7:443"); !strings.Contains(reset, got) || h.Counts().Full.Load() != 1 {
		t.Errorf("beyond the bound: %q, %d were too many", got, h.Counts().Full.Load())
	}
	close(block)
	wg.Wait()

	var clients []*conn.MemoryConn
	var ends []<-chan error
	for range 3 {
		c, ended := h.open("demo/a", 80)
		clients, ends = append(clients, c), append(ends, ended)
	}
	if _, ended := h.open("demo/a", 80); !errors.Is(<-ended, worker.ErrBusy) {
		t.Error("a fourth tunnel is not refused")
	}
	for i, ended := range ends {
		_ = clients[i].Close()
		<-ended
	}
	if _, err := h.get("demo/a", "/healthz"); err != nil {
		t.Errorf("after that: %v", err)
	}
}

func TestPace(t *testing.T) {
	const ms = time.Millisecond
	for name, tc := range map[string]struct {
		rate, burst float64
		when, want  []time.Duration
	}{
		"none":             {0, 0, []time.Duration{0, 0, 0}, []time.Duration{0, 0, 0}},
		"at once":          {10, 2, []time.Duration{0, 0, 0, 0}, []time.Duration{0, 0, 100 * ms, 200 * ms}},
		"each in its turn": {10, 2, []time.Duration{0, 0, 0, 100 * ms, 200 * ms}, []time.Duration{0, 0, 100 * ms, 100 * ms, 100 * ms}},
		"slow enough":      {10, 1, []time.Duration{0, 100 * ms, 200 * ms}, []time.Duration{0, 0, 0}},
		"after a pause":    {10, 2, []time.Duration{0, 0, 0, time.Hour, time.Hour, time.Hour}, []time.Duration{0, 0, 100 * ms, 0, 0, 100 * ms}},
	} {
		if diff := cmp.Diff(tc.want, worker.Pace(tc.rate, tc.burst, tc.when...)); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

// Connections that an actor opens faster than it may wait, all of them are carried, and its end does not wait for them.
func TestI5_CapturesArePaced(t *testing.T) {
	h := newHost(t, newRun(t), func(o *worker.Options) { o.Bounds.Rate = 1 })
	a := h.activate("demo/a")
	began := time.Now()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if got := h.dial("demo/a", "tcp", "203.0.113.7:443"); got != "hello from demo/a to 203.0.113.7:443" {
				t.Errorf("within the bound: %q", got)
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took < time.Second { // two at once, and one a second
		t.Errorf("three in %s", took)
	}
	late := h.Counts().Late.Load()
	wg.Go(func() { _, _ = h.get("demo/a", "/flood?to=203.0.113.7:443") }) // to the end of the actor
	for h.Counts().Late.Load() == late {
		time.Sleep(time.Millisecond) // looking again, not hoping
	}
	if err := h.Terminate(within(t, patience), a.UID); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if n, most := h.Counts().Carried.Load(), int64(time.Since(began).Seconds())+3; n > most {
		t.Errorf("%d were carried, want %d at most", n, most)
	}
}

// A captured connection that nothing moves on is ended.
func TestIdleCaptureEnds(t *testing.T) {
	h := newHost(t, newRun(t), func(o *worker.Options) {
		o.Bounds.Idle = 500 * time.Millisecond
		o.Egress = func(context.Context, worker.Actor) (worker.Egress, func() error, error) {
			out := func(context.Context, netip.AddrPort) (conn.Conn, error) {
				ours, _ := conn.Pipe() // never answers
				return ours, nil
			}
			return out, func() error { return nil }, nil
		}
	})
	p, out := program(t, "early")
	s := worker.Spec{Actor: worker.Actor{Ref: "demo/early", UID: "early"}, Program: *p}
	if err := h.Activate(within(t, patience), s); err != nil {
		t.Fatal(err)
	}
	<-h.exited
	if got, err := os.ReadFile(out.Name()); err != nil || !strings.Contains(reset+"|read EOF", strings.TrimSpace(string(got))) {
		t.Errorf("an idle connection ended with %q (%v)", got, err)
	}
}
