//go:build linux && !race

package conn_test

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// A message costs no allocation.
func TestAllocationsRelay(t *testing.T) {
	a, b, _, _ := relayedRaw(t, conn.Pace{Idle: time.Minute})
	ping := bytes.Repeat([]byte("x"), 32)
	pong := make([]byte, 32)
	once := func() {
		for _, c := range [][2]*net.TCPConn{{a, b}, {b, a}} {
			if _, err := c[0].Write(ping); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c[1], pong); err != nil {
				t.Fatal(err)
			}
		}
	}
	once()
	if n := testing.AllocsPerRun(1000, once); n >= 1 {
		t.Errorf("%v allocations for two messages", n)
	}
	a.CloseWrite()
	b.CloseWrite()
}
