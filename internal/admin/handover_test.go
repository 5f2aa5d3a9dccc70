package admin_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/config"
)

// Two servers hold the same socket, as in a binary upgrade, and the older one closes: every client is answered, also
// one whose connection the older one had just accepted.
func TestCloseOfSharedSocketLosesNobody(t *testing.T) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve := func(l net.Listener) *admin.Server {
		return open(t, block(func(c *config.Management) { c.Address = l.Addr().String() }), func(d *admin.Deps) {
			d.Listen = func(string, string) (net.Listener, error) { return l, nil }
		})
	}
	s := serve(first)
	url := base(s) + "/api/gateway/livez"
	ctx, cancel := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if r, err := (call{url: url}).try(); err != nil || r.status != 200 {
					t.Errorf("status %d, %v", r.status, err)
				}
			}
		})
	}
	for range 40 {
		file, err := s.Sockets()[admin.SocketMain].(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		next, err := net.FileListener(file)
		if err != nil {
			t.Fatal(err)
		}
		file.Close()
		old := s
		s = serve(next)
		closing, done := context.WithTimeout(ctx, 10*time.Second)
		old.Close(closing)
		done()
	}
	cancel()
	clients.Wait()
}
