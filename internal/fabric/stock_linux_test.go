package fabric_test

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"testing"

	"github.com/sluice-proxy/sluice/internal/fabric"
)

// Sockets are made some at a time: whoever dials gets one of the namespace and of nobody else's, no more are open than the stock
// holds, and none is left with the handle.
func TestStockOfSockets(t *testing.T) {
	r := newRun(t)
	open := func() int {
		t.Helper()
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := open()
	a, err := r.CreateNamespace("a")
	if err != nil {
		t.Fatal(err)
	}
	b, err := r.CreateNamespace("b")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort("127.0.0.1:7")
	l, err := a.Listen(at)
	if err != nil {
		t.Fatal(err)
	}
	made := open()
	var mu sync.Mutex
	seen := map[int]bool{}
	var dialing sync.WaitGroup
	for range 100 {
		dialing.Go(func() {
			c, err := a.Dial(t.Context(), at)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = c.Close() }()
			if err := a.Check(c.FD()); err != nil || !errors.Is(b.Check(c.FD()), fabric.ErrForeign) {
				t.Errorf("a socket of another namespace: %v", err)
			}
			s, err := l.AcceptTCP()
			if err != nil {
				t.Error(err)
				return
			}
			_ = s.Close()
			mu.Lock()
			seen[c.FD()] = true
			mu.Unlock()
		})
	}
	dialing.Wait()
	if kept := open() - made; kept < 0 || kept > 16 {
		t.Errorf("%d sockets are kept", kept)
	}
	if len(seen) == 0 {
		t.Error("nothing was dialed")
	}
	if err := errors.Join(l.Close(), a.Remove(), b.Remove()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Dial(t.Context(), at); !errors.Is(err, fabric.ErrClosed) {
		t.Errorf("dialing from a namespace that was closed: %v", err)
	}
	if left := open() - before; left > 0 {
		t.Errorf("%d descriptors are left", left)
	}
}
