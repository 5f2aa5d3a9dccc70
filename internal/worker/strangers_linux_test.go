package worker_test

import (
	"crypto/tls"
	"net"
	"testing"
)

// Peers that connect and say nothing do not keep the router out.
func TestSilentPeersDoNotKeepTheRouterOut(t *testing.T) {
	in := install(t)
	h := newHost(t, newRun(t), nil)
	addr, config := in.ingress(h.Worker)
	var silent []net.Conn
	defer func() {
		for _, c := range silent {
			_ = c.Close()
		}
	}()
	for range 1100 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
	}
	for range 3 {
		c, err := tls.Dial("tcp", addr, config)
		if err != nil {
			t.Fatalf("the router was kept out: %v", err)
		}
		_ = c.Close()
	}
}
