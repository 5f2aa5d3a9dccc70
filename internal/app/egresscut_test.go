package app_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// I24: nothing is sent to an origin for an actor that was cut while the origin was being dialed.
func TestI24_EgressCutWhileDialing(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	defer func() { _ = l.Close() }()
	w.routes.route("93.184.216.35:443", l.Addr().String())
	hold := make(chan struct{})
	w.routes.hold = hold
	p := w.run("a1")
	p.may(`{"tls_passthrough":{"hostnames":["raw.example.org"],"ports":{"all":{}}}}`)
	c, status := p.tunnel("1.2.3.4:443")
	if status != 200 {
		t.Fatalf("CONNECT: %d", status)
	}
	ended := make(chan struct{})
	go func() { // ends with the cut
		defer close(ended)
		_ = tls.Client(c, &tls.Config{ServerName: "raw.example.org", InsecureSkipVerify: true}).Handshake()
	}()
	gatewaytest.Until(t, "it is dialed", func() bool { return len(w.routes.dialed()) > 0 })
	if n := w.gateway.EgressGateway("egress").Cut(p.ref); n != 1 {
		t.Errorf("%d tunnels were open", n)
	}
	<-ended
	close(hold)
	up, err := l.Accept()
	w.must(err)
	defer func() { _ = up.Close() }()
	_ = up.SetDeadline(time.Now().Add(gatewaytest.Patience))
	if n, err := up.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Error("the origin was sent something")
	}
	if r := w.audit(2)[1]; r.Code != "cut" {
		t.Errorf("audit: %+v", r)
	}
}

// I24: the end of a cut reaches the origin too when the actor has sent all that it had to.
func TestI24_EgressCutHalfClosed(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	w.must(err)
	defer func() { _ = l.Close() }()
	w.routes.route("93.184.216.35:443", l.Addr().String())
	p := w.run("a1")
	p.may(`{"tls_passthrough":{"hostnames":["raw.example.org"],"ports":{"all":{}}}}`)
	c, status := p.tunnel("1.2.3.4:443")
	if status != 200 {
		t.Fatalf("CONNECT: %d", status)
	}
	hello, stop := context.WithCancel(t.Context())
	defer stop()
	s := tls.Client(c, &tls.Config{ServerName: "raw.example.org", InsecureSkipVerify: true})
	go func() { _ = s.HandshakeContext(hello) }() // ends with the cut
	up, err := l.Accept()
	w.must(err)
	defer func() { _ = up.Close() }()
	_, err = up.Read(make([]byte, 1))
	w.must(err)
	w.must(c.(*buffered).CloseWrite())
	_ = up.SetDeadline(time.Now().Add(gatewaytest.Patience))
	_, err = io.Copy(io.Discard, up) // all of it, and its end
	w.must(err)
	began := time.Now()
	if n := w.gateway.EgressGateway("egress").Cut(p.ref); n != 1 {
		t.Errorf("%d tunnels were open", n)
	}
	_ = up.SetDeadline(time.Now().Add(5 * time.Second)) // much less than a half of a connection may go on
	for err = error(nil); err == nil; _, err = up.Write(make([]byte, 1)) {
		time.Sleep(10 * time.Millisecond) // the origin is slow
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the origin still sends after %s: %v", time.Since(began), err)
	}
	if r := w.audit(2)[1]; r.Code != "cut" {
		t.Errorf("audit: %+v", r)
	}
}

// I24: the audit log says of a request that a cut has ended that it was cut, not that its client had left.
func TestI24_EgressCutRequest(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	begun := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	w.routes.route("93.184.216.34:80", strings.TrimPrefix(s.URL, "http://"))
	p := w.run("a1")
	p.may(everythingAllowed)
	c, status := p.tunnel("93.184.216.34:80")
	if status != 200 {
		t.Fatalf("CONNECT: %d", status)
	}
	defer func() { _ = c.Close() }()
	_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: web.example.org\r\n\r\n")
	w.must(err)
	<-begun
	if n := w.gateway.EgressGateway("egress").Cut(p.ref); n != 1 {
		t.Errorf("%d tunnels were open", n)
	}
	if r := w.audit(2)[1]; r.Verdict != "allow" || r.Code != "cut" {
		t.Errorf("audit: %+v", r)
	}
}
