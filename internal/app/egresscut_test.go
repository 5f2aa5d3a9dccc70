package app_test

import (
	"crypto/tls"
	"net"
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
