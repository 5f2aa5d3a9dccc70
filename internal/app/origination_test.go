package app_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// inTLS serves connections inside TLS, after a line in clear text if there has to be one, whose text goes to said.
func inTLS(t testing.TB, certFile, keyFile string, said chan<- string) string {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		t.Fatal(err)
	}
	return tcpBackend(t, func(c *net.TCPConn) {
		if said != nil {
			line, err := bufio.NewReaderSize(oneByte{c}, 1).ReadString('\n')
			if err != nil {
				return
			}
			said <- line
		}
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair}})
		if n, err := io.Copy(s, s); n > 0 && err == nil {
			_, _ = io.WriteString(s, "the end\n") // close_notify has come
			_ = s.CloseWrite()
		}
	})
}

// oneByte reads no further than asked.
type oneByte struct{ io.Reader }

func (r oneByte) Read(b []byte) (int, error) { return r.Reader.Read(b[:1]) }

// The bytes of a connection travel inside TLS to a tls backend, which is verified, and both directions end by themselves.
func TestTLSOrigination(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := certificate(t, dir)
	said := make(chan string, 8)
	trusted := fmt.Sprintf("transport { ca_file = %q, server_name = \"gateway.test\" }", certFile)
	check := "load_balancer {\n health_check { interval = \"100ms\" }"
	for _, c := range []struct {
		name, service, check string
		backend              string
		code                 string // of the error; "" none
		line                 string // begin of the line before TLS
	}{
		{"verified", trusted, "", inTLS(t, certFile, keyFile, nil), "", ""},
		{"verified and checked", trusted, check, inTLS(t, certFile, keyFile, nil), "", ""},
		{"unknown authority", `transport { server_name = "gateway.test" }`, "", inTLS(t, certFile, keyFile, nil), "tls_failed", ""},
		{"another name", fmt.Sprintf("transport { ca_file = %q }", certFile), "", inTLS(t, certFile, keyFile, nil), "tls_failed", ""},
		{"no TLS there", trusted, "", tcpBackend(t, echoes("plain")), "tls_failed", ""},
		{"behind a PROXY protocol header", strings.Replace(trusted, "}", ", send_proxy = \"v1\" }", 1), "", inTLS(t, certFile, keyFile, said), "", "PROXY TCP4 127.0.0.1 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := streams("", "", c.service, "tls://"+c.backend)
			if c.check != "" {
				text = strings.Replace(text, "load_balancer {", c.check, 1)
			}
			g := gatewaytest.Start(t, text)
			raw := dialTCP(t, g.Addr("db"))
			if c.code != "" {
				_ = over(t, raw)
				if l := g.Lines.Next(t); l.Text("error_code") != c.code {
					t.Error(l)
				}
				return
			}
			if got := say(t, raw, "x"); got != "x" {
				t.Errorf("%q", got)
			}
			_ = raw.CloseWrite()
			if rest, err := io.ReadAll(raw); err != nil || string(rest) != "the end\n" {
				t.Errorf("%q, %v", rest, err)
			}
			if c.line != "" {
				if line := <-said; !strings.HasPrefix(line, c.line) {
					t.Errorf("%q", line)
				}
			}
			if l := g.Lines.Next(t); l.Text("outcome") != "ok" {
				t.Error(l)
			}
		})
	}
}
