package app_test

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// One client has no more connections than it may, however many others have, and gets the place of one that has ended.
func TestConnectionsPerClient(t *testing.T) {
	addr := tcpBackend(t, echoes("a"))
	for name, keys := range map[string]string{
		"by the socket":             "",
		"by the PROXY protocol":     `proxy_protocol { trusted_ips = ["127.0.0.1"] }`,
		"by the PROXY protocol, v6": `proxy_protocol { trusted_ips = ["127.0.0.1"] }`,
	} {
		t.Run(name, func(t *testing.T) {
			g := gatewaytest.Start(t, streams(keys+"\n  max_connections_per_client = 2", "", "", "tcp://"+addr))
			dial := func(client, port int) net.Conn {
				from := net.IPv4(127, 0, 0, 1)
				if keys == "" {
					from = net.IPv4(127, 0, 0, byte(1+client))
				}
				c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: from}}).Dial("tcp", g.Addr("db"))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
				switch {
				case strings.HasSuffix(name, "v6"): // every address of a /64 is the same client's
					_, _ = fmt.Fprintf(c, "PROXY TCP6 2001:db8:0:%d::%d 2001:db8::1 %d 443\r\n", client, port, port)
				case keys != "":
					_, _ = fmt.Fprintf(c, "PROXY TCP4 192.0.2.%d 192.0.2.1 %d 443\r\n", client, port)
				}
				return c
			}
			first := dial(1, 10)
			say(t, first, "x")
			say(t, dial(1, 11), "x")
			_ = over(t, dial(1, 12))
			say(t, dial(2, 13), "x")
			_ = first.Close()
			g.Lines.Next(t)
			free := false
			for until := time.Now().Add(gatewaytest.Patience); !free && time.Now().Before(until); {
				c := dial(1, 14) // closed at once as long as the one that has ended still counts
				_, _ = io.WriteString(c, "y\n")
				n, _ := c.Read(make([]byte, 16))
				free = n > 0
			}
			if !free {
				t.Error("the place of a connection that has ended is not free")
			}
		})
	}
}
