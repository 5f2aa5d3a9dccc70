package app_test

import (
	"runtime/debug"
	"runtime/metrics"
	"testing"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// stackMost is how many bytes of stack a connection may hold after a request: 4 KiB, and what is lost in between. A frame
// too much on the way to the backend makes all of them grow to 8 KiB, and costs a new connection as much as a system call
// that sends something.
const stackMost = 5 << 10

// TestIdleCostStack: a request fits into the stack that its connection begins with.
func TestIdleCostStack(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector needs more stack")
	}
	g := gatewaytest.Start(t, `
entrypoints "web" { address = "127.0.0.1:0" }
routers "all" {
  rule    = "PathPrefix(`+"`/`"+`)"
  service = "up"
}
services "up" { load_balancer { servers = [{ url = "http://`+cheapBackend(t, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok")+`" }] } }
`, gatewaytest.With(func(o *app.Options) { o.Stdout = app.Discard(t) }))

	request := []byte("GET /v1/models HTTP/1.1\r\nHost: api.example\r\nUser-Agent: test\r\nAccept: */*\r\n\r\n")
	newPlainOnce(t, g.Addr("web"), request).once(t)  // connects to the backend, which takes more
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would shrink them
	before := stacks()
	const n = 500
	for range n {
		newPlainOnce(t, g.Addr("web"), request).once(t)
	}
	if each := (stacks() - before) / n; each > stackMost || each < stackMost/2 {
		t.Errorf("%d bytes of stack a connection, not about 4 KiB", each)
	}
}

// stacks is how many bytes the stacks of all goroutines take.
func stacks() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
