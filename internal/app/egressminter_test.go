package app_test

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/egress"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// I29, I23: TLS that cannot be opened is closed, and never passed on; each time there is a line that says why.
func TestI29_EgressWithoutMinter(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	w.origin("api.example.com", "93.184.216.34:443", true)
	p := w.run("a1")
	p.may(everythingAllowed)
	lines := 0
	try := func(what string, reason egress.Reason) {
		t.Helper()
		c, status := p.tunnel("93.184.216.34:443")
		if status != 200 {
			t.Fatalf("%s: CONNECT: %d", what, status)
		}
		defer func() { _ = c.Close() }()
		began := time.Now()
		if err := tls.Client(c, &tls.Config{ServerName: "api.example.com"}).Handshake(); err == nil || time.Since(began) > gatewaytest.Patience/2 {
			t.Errorf("%s: %v after %s", what, err, time.Since(began))
		}
		lines += 2
		if r := w.audit(lines)[lines-1]; r.Reason != reason || r.Verdict != "deny" || r.SNI != "api.example.com" || r.Leg != egress.LegIntercepted {
			t.Errorf("%s: %+v", what, r)
		}
	}
	minter := filepath.Join(w.dir, "minter.sock")
	w.must(os.Rename(minter, minter+".gone"))
	try("without a minter", egress.MintFailed)
	w.must(os.Rename(minter+".gone", minter))
	try("an actor without the authority", egress.HandshakeFailed)
	if d := w.routes.dialed(); len(d) > 0 {
		t.Errorf("dialed %v", d)
	}
}
