package gatewaytest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// Ports for servers that are told their port lie below those that systems give to clients and to whoever asks for any
// port, so that no such socket takes one between the look and the use. Packages are tested at the same time: each has a
// block of ports to itself, by a listener on the first, which it keeps.
const (
	firstPort, portBlocks = 20000, 60
	portBlock             = 200
)

var ports struct {
	mu    sync.Mutex   // guards the rest
	guard net.Listener // nil before the first use
	first int          // of the block
	last  int          // that was given out, counted from the first
}

// FreeAddress is 127.0.0.1 with one of FreePorts.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", FreePorts(t, 1)[0])
}

// FreePorts returns ports that nobody uses at this moment, for connections or for datagrams. They are not given out again
// before all others.
func FreePorts(t testing.TB, n int) []int {
	t.Helper()
	ports.mu.Lock()
	defer ports.mu.Unlock()
	for range 10 * portBlocks {
		if ports.guard != nil {
			break
		}
		ports.first = firstPort + rand.IntN(portBlocks)*portBlock
		ports.guard, _ = listenOn(ports.first)
	}
	if ports.guard == nil {
		t.Fatal("every block of ports is in use")
	}
	var free []int
	for range portBlock {
		if len(free) == n {
			break
		}
		ports.last = ports.last%(portBlock-1) + 1
		if port := ports.first + ports.last; unused(port) {
			free = append(free, port)
		}
	}
	if len(free) < n {
		t.Fatalf("only %d of %d ports are free", len(free), n)
	}
	return free
}

func unused(port int) bool {
	l, err := listenOn(port)
	if err != nil {
		return false
	}
	defer func() { _ = l.Close() }()
	d, err := net.ListenPacket("udp", l.Addr().String())
	if err != nil {
		return false
	}
	_ = d.Close()
	return true
}

func listenOn(port int) (net.Listener, error) {
	return net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
}
