package app_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// The audit log goes on in a new file after a rotation, as the access log does: the old one gets nothing any more.
func TestAuditLogIsOpenedAnew(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	p := w.run("a1")
	p.may(`{"http":{"hostnames":["web.example.org"]}}`)
	refused := func() {
		t.Helper()
		if c, status := p.tunnel("nowhere:80"); status != 403 {
			t.Errorf("%d", status)
			_ = c.Close()
		}
	}
	refused()
	w.audit(1)
	log := filepath.Join(w.dir, "audit")
	if err := os.Rename(log, log+".1"); err != nil {
		t.Fatal(err)
	}
	if err := w.gateway.ReopenLogs(); err != nil {
		t.Fatal(err)
	}
	refused()
	gatewaytest.Until(t, "the new file has the second line", func() bool {
		text, _ := os.ReadFile(log)
		return bytes.Count(text, []byte("\n")) == 1
	})
	if text, err := os.ReadFile(log + ".1"); err != nil || bytes.Count(text, []byte("\n")) != 1 {
		t.Errorf("the old file: %s, %v", text, err)
	}
	if err := os.Rename(w.dir, w.dir+".away"); err != nil { // a file that cannot be opened leaves the one there is
		t.Fatal(err)
	}
	err := w.gateway.ReopenLogs()
	if rerr := os.Rename(w.dir+".away", w.dir); rerr != nil {
		t.Fatal(rerr)
	}
	if err == nil {
		t.Error("no error without the directory")
	}
	refused()
	gatewaytest.Until(t, "the file that there is has the third line", func() bool {
		text, _ := os.ReadFile(log)
		return bytes.Count(text, []byte("\n")) == 2
	})
}

// Nobody reads the standard output that is the audit log: the gateway ends all the same.
func TestAuditLogThatNobodyReads(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	p := w.run("a1")
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close(); _ = out.Close() }()
	_ = out.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
	for err == nil { // until it is full
		_, err = out.Write(make([]byte, 4096))
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	_ = out.SetWriteDeadline(time.Time{})
	_ = out.Fd() // blocks from now on, as standard output does
	text := strings.Replace(w.config(filepath.Join(w.dir, "minter.sock"), ""), `audit_log      = "`+filepath.Join(w.dir, "audit")+`"`, `audit_log = "stdout"`, 1)
	text += "observability { access_log { output = \"stderr\" } }\n"
	w.gateway = gatewaytest.Start(t, text, gatewaytest.With(func(o *app.Options) { o.Network, o.Stdout, o.Stderr = w.routes, out, null }))
	if _, status := p.tunnel("nowhere:80"); status != 403 {
		t.Errorf("%d", status)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := w.gateway.Shutdown(ctx); err != nil {
		t.Errorf("it does not end: %v", err)
		_, _ = r.Read(make([]byte, 1<<20)) // let it
	}
}
