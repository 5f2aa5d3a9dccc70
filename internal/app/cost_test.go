package app_test

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// cheapBackend answers each read with the same bytes, and allocates nothing.
func cheapBackend(t *testing.T, answer string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer c.Close()
				for b, text := make([]byte, 4096), []byte(answer); ; {
					if _, err := c.Read(b); err != nil {
						return
					}
					if _, err := c.Write(text); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); running.Wait() })
	return l.Addr().String()
}

// TestAllocations: a whole gateway, with its timeouts, access log and metrics, allocates nothing of its own for a request
// on a connection that it knows.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	g := gatewaytest.Start(t, `
entrypoints "web" { address = "127.0.0.1:0" }
routers "all" {
  rule    = "Host(`+"`api.example`"+`) && PathPrefix(`+"`/v1`"+`)"
  service = "up"
}
services "up" { load_balancer { servers = [{ url = "http://`+cheapBackend(t, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok")+`" }] } }
management {
  enabled        = true
  address        = "127.0.0.1:0"
  auth_token_env = ""
}
`, gatewaytest.With(func(o *app.Options) { o.Stdout = app.Discard(t) }))

	request := []byte("GET /v1/models HTTP/1.1\r\nHost: api.example\r\nUser-Agent: test\r\nAccept: */*\r\n\r\n")
	for _, tc := range []struct {
		name   string
		client interface{ once(t *testing.T) }
		most   float64
	}{
		{"HTTP/1.1", newPlainOnce(t, g.Addr("web"), request), 0},
		{"HTTP/2", newStreamOnce(t, g.Addr("web")), 2}, // the decoder of fields makes a string of each literal
	} {
		for range 100 { // pools fill, stacks grow
			tc.client.once(t)
		}
		if n := testing.AllocsPerRun(1000, func() { tc.client.once(t) }); n > tc.most {
			t.Errorf("%s: %v allocations a request, more than %v", tc.name, n, tc.most)
		}
	}
}

// plainOnce repeats a request over one connection.
type plainOnce struct {
	c            net.Conn
	request, buf []byte
	size         int
}

func dialOnce(t *testing.T, addr string) net.Conn {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func newPlainOnce(t *testing.T, addr string, request []byte) *plainOnce {
	p := &plainOnce{c: dialOnce(t, addr), request: request, buf: make([]byte, 4096)}
	p.write(t)
	n, err := p.c.Read(p.buf)
	if err != nil {
		t.Fatal(err)
	}
	p.size = n
	return p
}

func (p *plainOnce) write(t *testing.T) {
	if _, err := p.c.Write(p.request); err != nil {
		t.Fatal(err)
	}
}

func (p *plainOnce) once(t *testing.T) {
	p.write(t)
	if _, err := io.ReadFull(p.c, p.buf[:p.size]); err != nil {
		t.Fatal(err)
	}
}

// streamOnce sends one stream after another over a connection of HTTP/2 in clear text.
type streamOnce struct {
	plainOnce
	id uint32
}

// getBlock is the field block of the same request: names and values are literals or of the static table.
const getBlock = "\x82\x86" + "\x04\x0a/v1/models" + "\x01\x0bapi.example"

func newStreamOnce(t *testing.T, addr string) *streamOnce {
	frame := append([]byte{0, 0, byte(len(getBlock)), 1, 5, 0, 0, 0, 0}, getBlock...)
	s := &streamOnce{plainOnce{c: dialOnce(t, addr), request: frame, buf: make([]byte, 16<<10)}, 1}
	if _, err := io.WriteString(s.c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"+"\x00\x00\x00\x04\x01\x00\x00\x00\x00"); err != nil {
		t.Fatal(err)
	}
	s.once(t)
	return s
}

// once reads frames until the stream has ended.
func (s *streamOnce) once(t *testing.T) {
	binary.BigEndian.PutUint32(s.request[5:], s.id)
	s.id += 2
	s.write(t)
	for ended := false; !ended; {
		if _, err := io.ReadFull(s.c, s.buf[:9]); err != nil {
			t.Fatal(err)
		}
		size := int(s.buf[1])<<8 | int(s.buf[2])
		ended = s.buf[3] <= 1 && s.buf[4]&1 != 0
		if _, err := io.ReadFull(s.c, s.buf[9:9+size]); err != nil {
			t.Fatal(err)
		}
	}
}
