package http3_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	qhttp3 "github.com/quic-go/quic-go/http3"
	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a running listener with one server behind it.
type rig struct {
	*http3.Server
	listener  *http3.Listener
	addr      string
	live      drain.Tracker
	tls       atomic.Pointer[tls.Config]
	refuse    atomic.Bool
	crowded   atomic.Bool
	admitted  atomic.Int64
	failed    chan error
	handshake atomic.Int64 // its time limit; 0 is ten seconds
	left      atomic.Int64
}

func (r *rig) Admit(client netip.AddrPort) *http3.Guest {
	if r.refuse.Load() || !client.IsValid() {
		return nil
	}
	r.admitted.Add(1)
	return &http3.Guest{
		Server: r.Server, Entrypoint: "web", TLS: r.tls.Load, Live: &r.live,
		Failed: func(err error) { r.failed <- err }, Leave: func() { r.left.Add(1) },
	}
}

func (r *rig) Crowded() bool { return r.crowded.Load() }
func (r *rig) HandshakeTimeout() time.Duration {
	if d := r.handshake.Load(); d > 0 {
		return time.Duration(d)
	}
	return 10 * time.Second
}

func settings(h exchange.Handler) *http3.Settings {
	return &http3.Settings{
		Handler: h, MaxHeaderBytes: 8 << 10, MaxHeaders: 32,
		HeaderTimeout: time.Minute, BodyIdleTimeout: time.Minute, WriteIdleTimeout: time.Minute, KeepAliveTimeout: time.Minute, // none ends what a test waits for
	}
}

// start serves on a loopback port until the test ends.
func start(t *testing.T, set *http3.Settings) *rig {
	t.Helper()
	pc, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	return startOn(t, set, pc, nil)
}

// startOn serves on a socket that another listener may have handed over.
func startOn(t *testing.T, set *http3.Settings, pc *net.UDPConn, pred *net.UnixConn) *rig {
	t.Helper()
	r := shut(t, set, pc, pred)
	r.listener.Open()
	return r
}

// shut is startOn without reading the socket yet.
func shut(t *testing.T, set *http3.Settings, pc *net.UDPConn, pred *net.UnixConn) *rig {
	t.Helper()
	clock := conn.NewClock()
	ctx, cancel := context.WithCancel(context.Background())
	var clocked sync.WaitGroup
	clocked.Go(func() { _ = clock.Run(ctx) })
	r := &rig{Server: http3.NewServer(set, clock), addr: pc.LocalAddr().String(), failed: make(chan error, 256)}
	r.tls.Store(&tls.Config{Certificates: []tls.Certificate{certificate(t)}})
	var err error
	if r.listener, err = http3.Listen(pc, pred, r); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer func() { cancel(); clocked.Wait() }()
		r.live.Force()
		wait, stop := context.WithTimeout(context.Background(), 20*time.Second)
		defer stop()
		if err := r.listener.Wait(wait); err != nil {
			t.Errorf("connections are left: %v", err)
		}
		if err := r.listener.Close(); err != nil {
			t.Error(err)
		}
		if r.live.Len() != 0 || clock.Len() != 0 || r.admitted.Load() != r.left.Load() {
			t.Errorf("left over: %d connections, %d clock entries, %d of %d clients left", r.live.Len(), clock.Len(), r.left.Load(), r.admitted.Load())
		}
	})
	return r
}

// certificate makes one for loopback.
func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"gateway.test"},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// client is quic-go's, on sockets of its own.
func client(t *testing.T) *http.Client {
	t.Helper()
	tr := &qhttp3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	t.Cleanup(func() { _ = tr.Close() })
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

// patience bounds whatever a test waits for.
const patience = 10 * time.Second

// within fails the test if ch does not deliver in time.
func within[T any](t *testing.T, what string, ch <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-ch:
	case <-time.After(patience):
		t.Fatalf("%s did not happen within %v", what, patience)
	}
	return v
}

// readAll reads a request body to its end.
func readAll(x *exchange.Exchange) ([]byte, error) {
	var all []byte
	for {
		b, err := x.Down.ReadBody()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, b...)
		x.Down.ReleaseBody()
	}
}

func answer(x *exchange.Exchange, status int, body string) error {
	x.Response.Status, x.Response.ContentLength = status, int64(len(body))
	return x.Send([]byte(body), true)
}

// echo answers with what it has understood of the request.
var echo = exchange.HandlerFunc(func(x *exchange.Exchange) error {
	q := &x.Request
	body, err := readAll(x)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s %s %s len=%d %q", q.Protocol, q.Method, q.Target, q.Host, q.ContentLength, body)
	for name, value := range q.Fields.All() {
		if n := string(name); strings.HasPrefix(n, "x-") || n == "cookie" {
			fmt.Fprintf(&b, " %s=%s", n, value)
		}
	}
	for name, value := range q.Trailers.All() {
		fmt.Fprintf(&b, " trailer %s=%s", name, value)
	}
	return answer(x, 200, b.String())
})

func do(t *testing.T, c *http.Client, req *http.Request) (*http.Response, string) {
	t.Helper()
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func request(t *testing.T, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestExchange(t *testing.T) {
	r := start(t, settings(echo))
	c, url := client(t), "https://"+r.addr
	big := strings.Repeat("0123456789", 100_000)
	unknown := func(s string) io.Reader { return io.MultiReader(strings.NewReader(s)) }
	for _, tc := range []struct {
		name, method string
		body         io.Reader
		change       func(*http.Request)
		want         string
	}{
		{"get", "GET", nil, nil, "len=0 \"\""},
		{"head of several fields in order", "GET", nil, func(q *http.Request) {
			q.Header = http.Header{"X-A": {"1", "2"}, "Cookie": {"a=b; c=d"}}
		}, "len=0 \"\" x-a=1 x-a=2"},
		{"delete", "DELETE", nil, nil, "len=0 \"\""},
		{"post", "POST", strings.NewReader("hello"), nil, "len=5 \"hello\""},
		{"post of unknown length", "POST", unknown("hello"), nil, "len=-1 \"hello\""},
		{"post of nothing", "POST", http.NoBody, nil, "\"\""},
		{"large", "PUT", strings.NewReader(big), nil, fmt.Sprintf("len=%d %q", len(big), big)},
		{"large of unknown length", "PUT", unknown(big), nil, fmt.Sprintf("len=-1 %q", big)},
		{"get with a body", "GET", unknown("body"), nil, "len=-1 \"body\""},
		{"trailers", "POST", unknown("hello"), func(q *http.Request) {
			q.Trailer = http.Header{"X-Sum": {"5"}}
		}, "len=-1 \"hello\" trailer x-sum=5"},
		{"expect", "POST", strings.NewReader("hello"), func(q *http.Request) {
			q.Header.Set("Expect", "100-continue")
		}, "len=5 \"hello\""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			req := request(t, tc.method, url+"/p?q=1", tc.body)
			if tc.change != nil {
				tc.change(req)
			}
			resp, body := do(t, c, req)
			want := "HTTP/3.0 " + tc.method + " /p?q=1 " + r.addr + " "
			if resp.StatusCode != 200 || resp.ProtoMajor != 3 || !strings.HasPrefix(body, want) || !strings.Contains(body, tc.want) {
				t.Errorf("%d %s %.300s\nwant %.300s", resp.StatusCode, resp.Proto, body, tc.want)
			}
			if resp.ContentLength != int64(len(body)) {
				t.Errorf("Content-Length %d of %d", resp.ContentLength, len(body))
			}
		})
	}
}

// What is answered comes as it was handed over: interim heads, repeated fields, bodies of known and unknown length, in
// pieces, trailers, and the statuses without a body.
func TestResponses(t *testing.T) {
	piece := strings.Repeat("x", 100_000)
	r := start(t, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		p := &x.Response
		p.Fields.Add("X-A", "1")
		p.Fields.Add("X-A", "2")
		p.Fields.Add("Connection", "close, x-hop")
		p.Fields.Add("Transfer-Encoding", "chunked")
		switch string(x.Request.Path) {
		case "/early":
			var f exchange.Fields
			f.Add("Link", "</a>")
			if err := x.Interim(103, &f); err != nil {
				return err
			}
			return answer(x, 200, "late")
		case "/pieces":
			p.Status = 200
			p.Trailers.Add("X-Sum", "3")
			for range 3 {
				if err := x.Send([]byte(piece), false); err != nil {
					return err
				}
			}
			return x.Send(nil, true)
		case "/204":
			p.Status = 204
			return x.Send(nil, true)
		case "/304":
			p.Status, p.ContentLength = 304, 5
			return x.Send([]byte("hello"), true)
		case "/odd":
			return answer(x, 299, "odd")
		}
		return answer(x, 200, "hello")
	})))
	c, url := client(t), "https://"+r.addr
	for _, tc := range []struct {
		method, path string
		status       int
		body         string
		length       int64
	}{
		{"GET", "/", 200, "hello", 5},
		{"HEAD", "/", 200, "", 5},
		{"GET", "/early", 200, "late", 4},
		{"GET", "/pieces", 200, piece + piece + piece, -1},
		{"HEAD", "/pieces", 200, "", -1},
		{"GET", "/204", 204, "", 0},
		{"GET", "/304", 304, "", 0},
		{"GET", "/odd", 299, "odd", 3},
	} {
		t.Run(tc.method+" "+tc.path, func(t *testing.T) {
			var early []string
			req := request(t, tc.method, url+tc.path, nil)
			req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
					early = append(early, fmt.Sprint(code, h["Link"]))
					return nil
				},
			}))
			resp, body := do(t, c, req)
			if resp.StatusCode != tc.status || body != tc.body {
				t.Errorf("%d %.50q of %d", resp.StatusCode, body, len(body))
			}
			if tc.length > 0 && resp.ContentLength != tc.length {
				t.Errorf("Content-Length %d", resp.ContentLength)
			}
			if got := resp.Header["X-A"]; len(got) != 2 || got[0] != "1" || got[1] != "2" {
				t.Errorf("fields %q", got)
			}
			if resp.Header.Get("Connection") != "" || resp.Header.Get("Transfer-Encoding") != "" {
				t.Error("fields of a connection were sent")
			}
			if tc.path == "/early" && (len(early) != 1 || early[0] != "103 [</a>]") {
				t.Errorf("interim heads %q", early)
			}
			if tc.path == "/pieces" && tc.method == "GET" && resp.Trailer.Get("X-Sum") != "3" {
				t.Errorf("trailers %v", resp.Trailer)
			}
		})
	}
}

// An answer may come before the body, and while it goes on.
func TestFullDuplex(t *testing.T) {
	r := start(t, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		x.Response.Status = 200
		if err := x.Send([]byte("begun "), false); err != nil {
			return err
		}
		for {
			b, err := x.Down.ReadBody()
			if errors.Is(err, io.EOF) {
				return x.Send([]byte("end"), true)
			}
			if err != nil {
				return err
			}
			if err := x.Send(b, false); err != nil {
				return err
			}
			x.Down.ReleaseBody()
		}
	})))
	pr, pw := io.Pipe()
	resp, err := client(t).Do(request(t, "POST", "https://"+r.addr+"/", pr))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	read := func(want string) {
		t.Helper()
		b := make([]byte, len(want))
		if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != want {
			t.Fatalf("%q, %v", b, err)
		}
	}
	read("begun ")
	for _, s := range []string{"one ", "two "} {
		if _, err := pw.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
		read(s)
	}
	_ = pw.Close()
	read("end")
}

// An early answer ends the exchange; the rest of the upload is not wanted, and the connection goes on.
func TestEarlyAnswer(t *testing.T) {
	r := start(t, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error { return answer(x, 403, "no") })))
	c := client(t)
	for range 3 {
		pr, pw := io.Pipe()
		go func() {
			for {
				if _, err := pw.Write(make([]byte, 1<<10)); err != nil {
					return
				}
			}
		}()
		resp, body := do(t, c, request(t, "POST", "https://"+r.addr+"/", pr))
		_ = pr.Close()
		if resp.StatusCode != 403 || body != "no" {
			t.Errorf("%d %q", resp.StatusCode, body)
		}
	}
	if n := r.admitted.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// An answer that is broken off is a reset for the client, never the end of a body.
func TestAbort(t *testing.T) {
	r := start(t, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		if string(x.Request.Path) == "/ok" {
			return answer(x, 200, "ok")
		}
		x.Response.Status = 200
		if err := x.Send([]byte("part"), false); err != nil {
			return err
		}
		if string(x.Request.Path) == "/panic" {
			panic("as the test wants it")
		}
		return errors.New("broken")
	})))
	c := client(t)
	for _, path := range []string{"/error", "/panic"} {
		resp, err := c.Do(request(t, "GET", "https://"+r.addr+path, nil))
		if err == nil { // a reset may overtake what was sent before
			_, err = io.ReadAll(resp.Body)
			_ = resp.Body.Close()
		}
		var reset *quic.StreamError
		var h3 *qhttp3.Error
		if !errors.As(err, &h3) && !errors.As(err, &reset) {
			t.Errorf("%s: %v", path, err)
		}
		if resp, body := do(t, c, request(t, "GET", "https://"+r.addr+"/ok", nil)); resp.StatusCode != 200 || body != "ok" {
			t.Errorf("afterwards %d %q", resp.StatusCode, body)
		}
	}
}
