package admin_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/config"
)

// pipes is a listener whose connections lie in memory, so that their deadlines follow the time of a test.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

// Who says nothing, or half a head, is cut off after ten seconds; who says nothing more, after a minute.
func TestSlowClients(t *testing.T) {
	a := newAuthority(t)
	cert, key := a.server("server")
	for name, c := range map[string]struct {
		tls   bool
		send  string
		after time.Duration
	}{
		"silence":      {false, "", 10 * time.Second},
		"half a head":  {false, "GET /api/gateway HTTP/1.1\r\nHost", 10 * time.Second},
		"no handshake": {true, "", 10 * time.Second},
		"no next":      {false, "GET /api/gateway HTTP/1.1\r\nHost: x\r\n\r\n", 60 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newPipes()
				open(t, block(func(m *config.Management) {
					if c.tls {
						m.TLS = &config.ManagementTLS{TLS: config.TLS{KeyPair: config.KeyPair{CertFile: cert, KeyFile: key}}}
					}
				}), func(d *admin.Deps) {
					d.Listen = func(string, string) (net.Listener, error) { return l, nil }
				})
				client := l.dial()
				defer client.Close()
				start := time.Now()
				if _, err := io.WriteString(client, c.send); err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, client) // until the server closes
				if d := time.Since(start); d < c.after || d > c.after+2*time.Second {
					t.Errorf("cut off after %v, want %v", d, c.after)
				}
			})
		})
	}
}
