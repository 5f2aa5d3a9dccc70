package app_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// What is served inside a tunnel ends with the tunnel when its entrypoint is gone and the time to drain has passed, although
// the entrypoint inside stays, and whatever it waits for.
func TestReentryForcedWithItsTunnel(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 1)
	silent := tcpBackend(t, func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 1024))
		asked <- struct{}{}
		_, _ = io.Copy(io.Discard, c) // no answer
	})
	for name, open := range openers {
		t.Run(name, func(t *testing.T) {
			text := tunnelConfig("1", "http://"+silent, "") + "shutdown_timeout_secs = 1\n"
			g := gatewaytest.Start(t, text)
			c, status := open(t, g.Addr("proxy"), "inside.test:80")
			if status != 200 {
				t.Fatalf("status %d", status)
			}
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: app.test\r\n\r\n")
			<-asked
			g.Apply(strings.ReplaceAll(text, `"proxy"`, `"other"`))
			ended := make(chan error, 1)
			go func() {
				_, err := io.Copy(io.Discard, c)
				ended <- err
			}()
			select {
			case <-ended:
			case <-time.After(gatewaytest.Patience / 2):
				t.Error("the request inside goes on")
			}
		})
	}
}
