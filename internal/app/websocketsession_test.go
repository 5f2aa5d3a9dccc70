package app_test

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// session is a client's end of a WebSocket session, however it was opened.
type session struct {
	t testing.TB
	io.Writer
	r     *bufio.Reader
	close func() // without a close frame
}

// carrier is a way to open sessions.
type carrier struct {
	name   string
	scheme string // of the forwarding field
	open   func(t testing.TB, g *gatewaytest.Gateway, path string, fields ...string) (*session, *http.Response)
}

// carriers need the entrypoints web and tls.
var carriers = []carrier{
	{"h1", "http", func(t testing.TB, g *gatewaytest.Gateway, path string, fields ...string) (*session, *http.Response) {
		return openHTTP1(t, gatewaytest.Dial(t, g.Addr("web")), path, fields)
	}},
	{"h1 over tls", "https", func(t testing.TB, g *gatewaytest.Gateway, path string, fields ...string) (*session, *http.Response) {
		c, err := tls.Dial("tcp", g.Addr("tls"), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		if err != nil {
			t.Fatal(err)
		}
		return openHTTP1(t, gatewaytest.NewClient(t, c), path, fields)
	}},
	{"h2", "https", func(t testing.TB, g *gatewaytest.Gateway, path string, fields ...string) (*session, *http.Response) {
		return openHTTP2(t, newConnector(t, g.Addr("tls")), path, fields)
	}},
}

func openHTTP1(t testing.TB, c *gatewaytest.Client, path string, fields []string) (*session, *http.Response) {
	head := strings.Replace(websocket, "/upgrade", path, 1)
	if len(fields) > 0 {
		head = strings.TrimSuffix(head, "\r\n") + strings.Join(fields, "\r\n") + "\r\n\r\n"
	}
	c.Send(head)
	resp := c.Response()
	return &session{t, c, c.R, func() { _ = c.Close() }}, resp
}

// openHTTP2 opens a session by extended CONNECT.
func openHTTP2(t testing.TB, k *connector, path string, fields []string) (*session, *http.Response) {
	s, resp := k.open(path, append([]string{"Sec-WebSocket-Version: 13"}, fields...))
	return &session{t, s, bufio.NewReader(s), s.reset}, resp
}

// switched is the status that opens a session.
func (c carrier) switched() int {
	if c.name == "h2" {
		return 200
	}
	return 101
}

// accepted opens a session that must be accepted.
func (c carrier) accepted(t testing.TB, g *gatewaytest.Gateway, path string, fields ...string) *session {
	t.Helper()
	s, resp := c.open(t, g, path, fields...)
	if resp.StatusCode != c.switched() {
		t.Fatalf("answered with %s", resp.Status)
	}
	return s
}

// write sends bytes.
func (s *session) write(b []byte) {
	s.t.Helper()
	if _, err := s.Write(b); err != nil {
		s.t.Fatalf("writing: %v", err)
	}
}

// echoes sends bytes to a backend that sends them back.
func (s *session) echoes(text string) {
	s.t.Helper()
	s.write([]byte(text))
	b := make([]byte, len(text))
	if _, err := io.ReadFull(s.r, b); err != nil || string(b) != text {
		s.t.Fatalf("%q came back as %q, %v", text, b, err)
	}
}

// frame is what a client sends.
func frame(first byte, payload string) []byte {
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	mask := [4]byte{1, 2, 3, 4}
	b = append(b, mask[:]...)
	for i := range len(payload) {
		b = append(b, payload[i]^mask[i%4])
	}
	return b
}

// say sends a text message.
func (s *session) say(text string) {
	s.t.Helper()
	s.write(frame(0x81, text))
}

// next reads a frame of a server.
func (s *session) next() (first byte, payload string) {
	s.t.Helper()
	head := make([]byte, 2)
	if _, err := io.ReadFull(s.r, head); err != nil {
		s.t.Fatalf("reading a frame: %v", err)
	}
	n := uint64(head[1])
	for more := map[uint64]int{126: 2, 127: 8}[n]; more > 0; more = 0 {
		b := make([]byte, 8)
		if _, err := io.ReadFull(s.r, b[8-more:]); err != nil {
			s.t.Fatal(err)
		}
		n = binary.BigEndian.Uint64(b)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(s.r, b); err != nil {
		s.t.Fatal(err)
	}
	return head[0], string(b)
}

// hears wants a text message.
func (s *session) hears(want string) {
	s.t.Helper()
	if first, got := s.next(); first != 0x81 || got != want {
		s.t.Fatalf("heard %#x %q, want %q", first, got, want)
	}
}

// dismissed wants a close frame with the code, and the end.
func (s *session) dismissed(code uint16) {
	s.t.Helper()
	first, got := s.next()
	if first != 0x88 || len(got) < 2 || binary.BigEndian.Uint16([]byte(got)) != code {
		s.t.Fatalf("heard %#x %q, want a close frame of %d", first, got, code)
	}
	if rest, err := io.ReadAll(s.r); len(rest) > 0 || err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !strings.Contains(err.Error(), "reset") && !strings.Contains(err.Error(), "CANCEL") {
		s.t.Errorf("then %q, %v", rest, err)
	}
	s.close()
}
