package app_test

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// What PostgreSQL clients send before TLS.
var (
	pgSSL = []byte{0, 0, 0, 8, 4, 210, 22, 47}
	pgGSS = []byte{0, 0, 0, 8, 4, 210, 22, 48}
)

// answerTo sends bytes and returns the one that answers.
func answerTo(t testing.TB, c net.Conn, b []byte) string {
	t.Helper()
	if _, err := c.Write(b); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 1)
	if _, err := io.ReadFull(c, answer); err != nil {
		t.Fatalf("no answer to %x: %v", b, err)
	}
	return string(answer)
}

// pgBackend answers a request for TLS with answer, and goes on in TLS when that is yes.
func pgBackend(t testing.TB, answer string) string {
	t.Helper()
	certFile, keyFile := certificate(t, t.TempDir())
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	return tcpBackend(t, func(c *net.TCPConn) {
		head := make([]byte, len(pgSSL))
		if _, err := io.ReadFull(c, head); err != nil || !bytes.Equal(head, pgSSL) {
			return
		}
		_, _ = io.WriteString(c, answer)
		if answer == "S" {
			s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair}})
			_, _ = io.Copy(s, s)
		}
	})
}

// The request for TLS is answered once, in whatever pieces it comes, also after one for GSSAPI, which is denied.
func TestTLSRequest(t *testing.T) {
	certFile, keyFile := certificate(t, t.TempDir())
	keys := fmt.Sprintf("tls { cert_file = %q, key_file = %q }", certFile, keyFile)
	plain := tcpBackend(t, echoes("plain"))
	g := gatewaytest.Start(t, byName(keys, map[string]string{"pass.example": pgBackend(t, "S"), "end.example": plain, "*": plain},
		map[string]string{"pass.example": "passthrough", "end.example": "terminate", "*": "terminate"}))
	for _, c := range []struct {
		name, host string
		gss        bool
		cut        int
		want       string
	}{
		{"terminated", "end.example", false, 8, "plain x"},
		{"terminated, no rule for its name", "other.example", false, 8, "plain x"},
		{"terminated, after GSSAPI", "end.example", true, 8, "plain x"},
		{"terminated, in pieces", "end.example", false, 3, "plain x"},
		{"passed through", "pass.example", false, 8, "x"},
		{"passed through, in pieces", "pass.example", false, 1, "x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := dialTCP(t, g.Addr("db"))
			if c.gss {
				if got := answerTo(t, raw, pgGSS); got != "N" {
					t.Fatalf("GSSAPI is answered by %q", got)
				}
			}
			if c.cut < len(pgSSL) {
				_, _ = raw.Write(pgSSL[:c.cut])
				time.Sleep(20 * time.Millisecond) // so that the piece travels by itself: this is what is tested
			}
			if got := answerTo(t, raw, pgSSL[c.cut%len(pgSSL):]); got != "S" {
				t.Fatalf("TLS is answered by %q", got)
			}
			if got := once(t, startTLS(t, raw, c.host), "x"); got != c.want {
				t.Errorf("%q", got)
			}
		})
	}
}

// Bytes behind a request for TLS are somebody else's: nothing is answered, and no backend sees them.
func TestTLSRequestStuffed(t *testing.T) {
	certFile, keyFile := certificate(t, t.TempDir())
	keys := fmt.Sprintf("tls { cert_file = %q, key_file = %q }", certFile, keyFile)
	backend := tcpBackend(t, echoes("plain"))
	for name, rule := range map[string]string{"by name": "end.example", "for all": "*"} {
		t.Run(name, func(t *testing.T) {
			g := gatewaytest.Start(t, byName(keys, map[string]string{rule: backend}, map[string]string{rule: "terminate"}))
			raw := dialTCP(t, g.Addr("db"))
			if _, err := raw.Write(append(pgSSL[:8:8], "select 1"...)); err != nil {
				t.Fatal(err)
			}
			_ = over(t, raw)
			if l := g.Lines.Next(t); l.Text("error_code") != "tls_handshake_failed" {
				t.Error(l)
			}
		})
	}
}

// KF-L4-04: with no backend, or one that refuses TLS or never answers, the client does not wait for ever.
func TestKF_L4_04(t *testing.T) {
	t.Parallel()
	closed := gatewaytest.FreeAddress(t)
	silent := tcpBackend(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	for _, c := range []struct{ name, backend, mode, code string }{
		{"closed, terminated", closed, "terminate", "connect_failed"},
		{"closed, passed through", closed, "passthrough", "connect_failed"},
		{"refuses TLS", pgBackend(t, "N"), "passthrough", "connect_failed"},
		{"never answers", silent, "passthrough", "connect_timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			certFile, keyFile := certificate(t, t.TempDir())
			keys := fmt.Sprintf("tls { cert_file = %q, key_file = %q }", certFile, keyFile)
			text := byName(keys, map[string]string{"db.example": c.backend}, map[string]string{"db.example": c.mode})
			if c.code == "connect_timeout" { // the others are told, however late
				text = strings.Replace(text, "load_balancer {", "transport { connect_timeout = \"500ms\" }\n load_balancer {", 1)
			}
			g := gatewaytest.Start(t, text)
			raw := dialTCP(t, g.Addr("db"))
			began := time.Now()
			if got := answerTo(t, raw, pgSSL); got != "S" {
				t.Fatalf("%q", got)
			}
			s := tls.Client(raw, &tls.Config{ServerName: "db.example", InsecureSkipVerify: true})
			if err := s.Handshake(); err == nil { // terminated: the end comes inside TLS
				_, err = s.Read(make([]byte, 1))
				if err == nil {
					t.Error("a byte came from nowhere")
				}
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the end took %s", took)
			}
			if l := g.Lines.Next(t); l.Text("error_code") != c.code {
				t.Error(l)
			}
		})
	}
}
