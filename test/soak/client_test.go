//go:build linux

package soak_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// client is one connection that is used again and again, as long as the gateway does not ask for its close. It never
// sends a request twice.
type client struct {
	name    string
	report  *report
	address string
	roots   *x509.CertPool // nil: clear text
	rest    time.Duration  // the longest pause between two requests; 0 for none

	conn   net.Conn
	read   *bufio.Reader
	served int // answers on this connection
	sent   int // requests of this client
}

// patience is how long the slowest thing may take; only a fault takes so long.
const patience = 20 * time.Second

// open opens a connection unless there is one.
func (c *client) open() error {
	if c.conn != nil {
		return nil
	}
	conn, err := (&net.Dialer{Timeout: patience}).Dial("tcp", c.address)
	if err != nil {
		return err
	}
	if c.roots != nil {
		t := tls.Client(conn, &tls.Config{RootCAs: c.roots, ServerName: serverName, NextProtos: []string{"http/1.1"}})
		_ = t.SetDeadline(time.Now().Add(patience))
		if err := t.Handshake(); err != nil {
			_ = conn.Close()
			return fmt.Errorf("handshake: %w", err)
		}
		conn = t
	}
	c.report.dials.Add(1)
	c.conn, c.served = conn, 0
	if c.read == nil {
		c.read = bufio.NewReaderSize(conn, 4096)
	}
	c.read.Reset(conn)
	return nil
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// id names the next request.
func (c *client) id() string {
	c.sent++
	return fmt.Sprintf("%s-%d", c.name, c.sent)
}

// head writes a request head into a buffer.
func (c *client) head(method, target, id, rest string) []byte {
	return []byte(method + " " + target + " HTTP/1.1\r\nHost: " + serverName + "\r\nX-Request-Id: " + id + "\r\n" + rest + "\r\n")
}

// begin sends a head, with what of the body goes along, and returns the answer's head. It reports failures itself and
// has closed the connection then. body, unless nil, sends the rest of a body.
func (c *client) begin(id string, first []byte, body func(io.Writer) error) *http.Response {
	if err := c.open(); err != nil {
		c.failed("connect", id, err)
		return nil
	}
	_ = c.conn.SetDeadline(time.Now().Add(patience))
	if _, err := c.conn.Write(first); err != nil {
		c.failed("send", id, err)
		return nil
	}
	if body != nil {
		if err := body(c.conn); err != nil {
			c.failed("upload", id, err)
			return nil
		}
	}
	_ = c.conn.SetDeadline(time.Now().Add(patience))
	res, err := http.ReadResponse(c.read, nil)
	if err != nil {
		c.failed("no answer", id, err)
		return nil
	}
	return res
}

// end checks that the answer is as it must be, and keeps or closes the connection as the answer says.
func (c *client) end(id, want string, res *http.Response) bool {
	got, err := io.ReadAll(res.Body)
	if err != nil {
		c.failed("short body", id, err)
		return false
	}
	if res.StatusCode != http.StatusOK {
		c.failed(fmt.Sprintf("status %d", res.StatusCode), id, fmt.Errorf("body %.200q", got))
		return false
	}
	if _, text, _ := strings.Cut(string(got), " "); text != want {
		c.failed("wrong body", id, fmt.Errorf("%.200q, want %q", got, want))
		return false
	}
	c.kept(res)
	return true
}

func (c *client) kept(res *http.Response) {
	c.served++
	if res.Close {
		c.report.asked.Add(1)
		c.close()
	}
}

func (c *client) failed(kind, id string, err error) {
	local := "no connection"
	if c.conn != nil {
		local = fmt.Sprintf("connection %s to %s, %d answers before", c.conn.LocalAddr(), c.address, c.served)
	}
	c.report.fail(kind, id, "%s: %v (%s)", id, err, local)
	c.close()
}

// recycle is after how many answers a client takes another connection by itself.
const recycle = 700

// load sends requests until told to stop.
func (c *client) load(stop *atomic.Bool) {
	defer c.close()
	body := strings.Repeat("abcdefghijklmnop", 64)
	sum := crc32.ChecksumIEEE([]byte(body))
	for !stop.Load() {
		c.pause(stop)
		id := c.id()
		path := routes[rand.IntN(len(routes))] + id
		first, want := c.head("GET", path, id, ""), path
		if c.sent%5 == 0 {
			first = append(c.head("POST", path, id, fmt.Sprintf("Content-Length: %d\r\n", len(body))), body...)
			want = fmt.Sprintf("%s %d %08x", path, len(body), sum)
		}
		began := time.Now()
		res := c.begin(id, first, nil)
		if res == nil || !c.end(id, want, res) {
			continue
		}
		if c.rest == 0 {
			c.report.latency.add(time.Since(began))
		}
		c.report.answered.Add(1)
		if c.roots != nil {
			c.report.tls.Add(1)
		}
		if c.served >= recycle {
			c.close()
		}
	}
}

// pause rests as long as the client is wont to between two requests, with its connection open.
func (c *client) pause(stop *atomic.Bool) {
	if c.rest == 0 {
		return
	}
	for end := time.Now().Add(rand.N(c.rest)); time.Now().Before(end) && !stop.Load(); {
		time.Sleep(20 * time.Millisecond)
	}
}

// twice sends two requests over one connection, with a rest in which the entrypoint may go.
func (c *client) twice(rest time.Duration) {
	for i := range 2 {
		if i > 0 {
			time.Sleep(rest)
		}
		id := c.id()
		path := routes[0] + id
		res := c.begin(id, c.head("GET", path, id, ""), nil)
		if res == nil || !c.end(id, path, res) {
			return
		}
		c.report.answered.Add(1)
	}
}

// stream reads one stream from its first to its last event.
func (c *client) stream(length time.Duration) {
	id := c.id()
	path := "/stream/" + id
	events := int(length / streamPace)
	res := c.begin(id, c.head("GET", fmt.Sprintf("%s?events=%d", path, events), id, "Accept: text/event-stream\r\n"), nil)
	if res == nil {
		return
	}
	if res.StatusCode != http.StatusOK {
		c.failed(fmt.Sprintf("stream status %d", res.StatusCode), id, nil)
		return
	}
	alive := func() { _ = c.conn.SetDeadline(time.Now().Add(patience)) }
	if err := readEvents(bufio.NewReader(res.Body), path, events, alive, c.report); err != nil {
		c.failed("stream", id, err)
		return
	}
	c.report.streams.Add(1)
	c.kept(res)
}

// upload sends one body piece by piece over about two seconds, every second one without saying its length before.
func (c *client) upload() {
	const pieces = 64
	piece := make([]byte, 64<<10)
	for i := range piece {
		piece[i] = byte(rand.Uint32())
	}
	id, sum := c.id(), crc32.NewIEEE()
	path := "/upload/" + id
	chunked := c.sent%2 == 0
	framing := fmt.Sprintf("Content-Length: %d\r\n", pieces*len(piece))
	if chunked {
		framing = "Transfer-Encoding: chunked\r\n"
	}
	res := c.begin(id, c.head("POST", path, id, framing), func(w io.Writer) error {
		tick := time.NewTicker(30 * time.Millisecond)
		defer tick.Stop()
		for i := range pieces {
			_ = c.conn.SetDeadline(time.Now().Add(patience))
			_, _ = sum.Write(piece)
			part := piece
			if chunked {
				part = append(fmt.Appendf(nil, "%x\r\n", len(piece)), piece...)
				part = append(part, "\r\n"...)
				if i == pieces-1 {
					part = append(part, "0\r\n\r\n"...)
				}
			}
			if _, err := w.Write(part); err != nil {
				return fmt.Errorf("after %d of %d pieces: %w", i, pieces, err)
			}
			<-tick.C
		}
		return nil
	})
	if res != nil && c.end(id, fmt.Sprintf("%s %d %08x", path, pieces*len(piece), sum.Sum32()), res) {
		c.report.uploads.Add(1)
		c.report.bytes.Add(int64(pieces * len(piece)))
	}
}
