package proxy_test

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http/httputil"
	"net/netip"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is how long a scripted end waits for anything.
const patience = 10 * time.Second

// soon bounds what takes no time by itself, on the busiest of machines. It is well below the limits that a gateway has by
// default, so that none of them can have been what ended something.
const soon = 5 * time.Second

// wire is one end of a connection, written and read byte for byte.
type wire struct {
	net.Conn
	r    *bufio.Reader
	fail func(format string, args ...any)
}

// message is a parsed HTTP/1.1 message.
type message struct {
	line    string // the start line
	header  textproto.MIMEHeader
	body    string
	trailer textproto.MIMEHeader
}

func (m message) status() string {
	_, s, _ := strings.Cut(m.line, " ")
	if len(s) > 3 {
		s = s[:3]
	}
	return s
}

func newWire(c net.Conn, fail func(string, ...any)) *wire {
	_ = c.SetDeadline(time.Now().Add(patience))
	return &wire{Conn: c, r: bufio.NewReader(c), fail: fail}
}

// send writes exactly s, and gives what follows the whole patience again.
func (w *wire) send(s string) {
	_ = w.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(w.Conn, s); err != nil {
		w.fail("writing: %v", err)
	}
}

// bytes reads exactly n bytes.
func (w *wire) bytes(n int) string {
	b := make([]byte, n)
	if k, err := io.ReadFull(w.r, b); err != nil {
		w.fail("reading %d bytes: %v after %q", n, err, clip(string(b[:k])))
	}
	return string(b)
}

// expect reads exactly want.
func (w *wire) expect(want string) {
	if got := w.bytes(len(want)); got != want {
		w.fail("got %q, want %q", clip(got), clip(want))
	}
}

func clip(s string) string {
	if len(s) > 300 {
		return s[:200] + "…" + s[len(s)-100:]
	}
	return s
}

// head reads a message head as it is, with its empty line.
func (w *wire) head() string {
	var b strings.Builder
	for {
		line, err := w.r.ReadString('\n')
		b.WriteString(line)
		if err != nil {
			w.fail("reading a head: %v after %q", err, b.String())
			return b.String()
		}
		if line == "\r\n" {
			return b.String()
		}
	}
}

// message reads one message; bodiless ones end with their head.
func (w *wire) message(bodiless bool) message {
	m, err := w.read(bodiless)
	if err != nil {
		w.fail("reading a message: %v; have %+v", err, m)
	}
	return m
}

// read is message that may fail; what was read is returned all the same.
func (w *wire) read(bodiless bool) (m message, err error) {
	tp := textproto.NewReader(w.r)
	if m.line, err = tp.ReadLine(); err != nil {
		return m, err
	}
	if m.header, err = tp.ReadMIMEHeader(); err != nil {
		return m, err
	}
	response := strings.HasPrefix(m.line, "HTTP/")
	if s := m.status(); response && (bodiless || s[0] == '1' || s == "204" || s == "304") {
		return m, nil
	}
	var body []byte
	cl := m.header.Get("Content-Length")
	switch {
	case m.header.Get("Transfer-Encoding") == "chunked":
		if body, err = io.ReadAll(httputil.NewChunkedReader(w.r)); err == nil {
			m.trailer, err = tp.ReadMIMEHeader()
		}
	case cl != "":
		n, _ := strconv.Atoi(cl)
		body = make([]byte, n)
		n, err = io.ReadFull(w.r, body)
		body = body[:n]
	case response:
		body, err = io.ReadAll(w.r)
	}
	m.body = string(body)
	return m, err
}

// closed waits for the other end to leave, and tells what it sent before.
func (w *wire) closed(within time.Duration) (rest string, err error) {
	_ = w.SetReadDeadline(time.Now().Add(within))
	b, err := io.ReadAll(w.r)
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return string(b), fmt.Errorf("still open after %v", within)
	}
	return string(b), nil
}

// quiet checks that nothing arrives for d.
func (w *wire) quiet(d time.Duration) {
	_ = w.SetReadDeadline(time.Now().Add(d))
	b, err := w.r.Peek(1)
	_ = w.SetReadDeadline(time.Now().Add(patience))
	var ne net.Error
	if len(b) > 0 || !errors.As(err, &ne) || !ne.Timeout() {
		w.fail("not quiet: %q, %v", b, err)
	}
}

// fin ends the sending side.
func (w *wire) fin() {
	c := w.Conn
	if t, ok := c.(*tls.Conn); ok {
		_ = t.CloseWrite()
		c = t.NetConn()
	}
	_ = c.(*net.TCPConn).CloseWrite()
}

// reset closes with RST.
func (w *wire) reset() {
	c := w.Conn
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// dial connects a scripted client.
func (g *gateway) dial(t testing.TB) *wire {
	t.Helper()
	c, err := net.Dial("tcp", g.addr)
	if err != nil {
		t.Fatal(err)
	}
	if g.mode.tls {
		c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
	}
	t.Cleanup(func() { c.Close() })
	return newWire(c, func(format string, args ...any) { t.Helper(); t.Fatalf("client: "+format, args...) })
}

// ask sends one request on a connection of its own and returns the answer.
func (g *gateway) ask(t testing.TB, request string) message {
	t.Helper()
	c := g.dial(t)
	defer c.Close()
	c.send(request)
	m := c.message(strings.HasPrefix(request, "HEAD "))
	return m
}

// get is the shortest request.
const get = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"

// backend is a listener whose connections each follow a script.
type backend struct {
	addr string
	l    net.Listener
	wg   sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	log   []*bytes.Buffer
	conns []net.Conn
}

// peer is the backend's end of one connection.
type peer struct {
	*wire
	n int // of the connection, from 0
}

// stop ends a script that has failed.
type stop struct{ err string }

// newBackend runs script on each connection. It closes the connection when the script returns; what fails in it fails
// the test.
func newBackend(t testing.TB, script func(p *peer)) *backend { return backendOn(t, nil, script) }

// backendOn is newBackend behind TLS, unless cfg is nil.
func backendOn(t testing.TB, cfg *tls.Config, script func(p *peer)) *backend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return backendAt(t, l, cfg, script)
}

// backendAt is backendOn with a given listener.
func backendAt(t testing.TB, l net.Listener, cfg *tls.Config, script func(p *peer)) *backend {
	b := &backend{addr: l.Addr().String(), l: l}
	b.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.wg.Go(func() { b.serve(t, c, cfg, script) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		b.mu.Lock()
		for _, c := range b.conns {
			_ = c.Close()
		}
		b.mu.Unlock()
		b.wg.Wait()
	})
	return b
}

func (b *backend) serve(t testing.TB, c net.Conn, cfg *tls.Config, script func(p *peer)) {
	defer c.Close()
	log := new(bytes.Buffer)
	b.mu.Lock()
	n := len(b.conns)
	b.conns, b.log = append(b.conns, c), append(b.log, log)
	b.mu.Unlock()
	defer func() {
		if v := recover(); v != nil {
			s, ok := v.(stop)
			if !ok {
				panic(v)
			}
			t.Errorf("backend connection %d: %s", n, s.err)
		}
	}()
	if cfg != nil {
		c = tls.Server(c, cfg)
	}
	w := newWire(logged{c, log, &b.mu}, func(format string, args ...any) { panic(stop{fmt.Sprintf(format, args...)}) })
	script(&peer{wire: w, n: n})
}

// logged keeps what was read.
type logged struct {
	net.Conn
	log *bytes.Buffer
	mu  *sync.Mutex
}

func (l logged) Read(b []byte) (int, error) {
	n, err := l.Conn.Read(b)
	l.mu.Lock()
	l.log.Write(b[:n])
	l.mu.Unlock()
	return n, err
}

// got is everything that all connections have received.
func (b *backend) got() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all strings.Builder
	for _, l := range b.log {
		all.Write(l.Bytes())
	}
	return all.String()
}

// opened is the number of connections.
func (b *backend) opened() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.conns)
}

// next reports whether another request comes on the connection.
func (p *peer) next() bool {
	_, err := p.r.Peek(1)
	return err == nil
}

// reset closes the backend's end with RST.
func (p *peer) reset() {
	c := p.Conn.(logged).Conn
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// gone waits for the gateway to close the connection.
func (p *peer) gone(within time.Duration) {
	if rest, err := p.closed(within); err != nil {
		p.fail("gateway did not leave: %v; it sent %q", err, clip(rest))
	}
}

// quietly waits without reading.
func (p *peer) quietly(d time.Duration) { <-time.After(d) }

// replies serves every request of a connection with the same bytes.
func replies(answer string) func(p *peer) {
	return func(p *peer) {
		for p.next() {
			p.message(false)
			p.send(answer)
		}
	}
}

// ok is a small answer.
const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// refusing returns an address that nobody listens on while the test lasts.
func refusing(t testing.TB) string {
	t.Helper()
	addr, _ := reserved(t)
	return addr
}

func addrOf(a net.Addr) netip.AddrPort { return a.(*net.TCPAddr).AddrPort() }

var serverTLS, serverPEM = selfSigned()

// selfSigned makes a certificate for 127.0.0.1.
func selfSigned() (*tls.Config, *x509.Certificate) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		panic(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}}}, leaf
}
