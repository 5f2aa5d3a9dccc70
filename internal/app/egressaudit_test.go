package app_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What an actor puts where no secret belongs, and what the engine does not take, does not become text of the audit log.
func TestI18_EgressAuditKeepsNoSecrets(t *testing.T) {
	const secret = "hunter2canary"
	w := newWorld(t, worldHosts, "")
	w.origin("web.example.org", "93.184.216.34:80", false)
	p := w.run("a1")
	p.may(everythingAllowed)
	lines := 0
	if c, status := p.tunnel("u:" + secret + "@93.184.216.34:80"); status == 200 {
		t.Error("a tunnel to somebody's address")
	} else {
		_ = c.Close()
	}
	lines = len(w.audit(0))
	for _, bytes := range []string{
		"GET / HTTP/1.1\r\nHost: u:" + secret + "@web.example.org\r\n\r\n",
		"GET http://u:" + secret + "@web.example.org/ HTTP/1.1\r\nHost: web.example.org\r\n\r\n",
		"GET /?token=" + secret + " HTTP/1.1\r\nHost: other.example.org\r\n\r\n",
		"GET http://web.example.org?" + secret + " HTTP/1.1\r\nHost: web.example.org\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: web.example.org\r\nAuthorization: " + secret + "\x01\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: web.example.org\r\nContent-Length: " + secret + "\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: web.example.org\r\n" + secret + " : x\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: web.example.org/" + secret + "\r\n\r\n",
		"GET " + secret + " HTTP/1.1\r\nHost: web.example.org\r\n\r\n",
	} {
		c, status := p.tunnel("93.184.216.34:80")
		if status != 200 {
			t.Fatalf("CONNECT: %d", status)
		}
		fmt.Fprint(c, bytes)
		_, _ = io.ReadFull(c, make([]byte, 12))
		_ = c.Close()
		lines += 2
		w.audit(lines)
	}
	text, err := os.ReadFile(filepath.Join(w.dir, "audit"))
	w.must(err)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, secret) {
			t.Errorf("audit: %s", line)
		}
	}
}
