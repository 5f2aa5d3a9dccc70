package http1_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http1"
)

// connecting are the settings of a server that takes CONNECT, answers with 200 and sends back what comes.
func connecting() *http1.Settings {
	set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		if string(x.Request.Host) == "refused.test:1" {
			return exchange.Reject(403, "refused", "Refused")
		}
		x.Response.Status = 200
		x.Response.Fields.Add("X-Target", string(x.Request.Host))
		if err := x.Send(nil, true); err != nil {
			return err
		}
		c, err := x.Down.Takeover()
		if err != nil {
			return err
		}
		_, _ = io.Copy(c, c)
		_ = c.(conn.CloseWriter).CloseWrite()
		return c.Close()
	}))
	set.Connect = true
	return set
}

const connectHead = "CONNECT target.test:443 HTTP/1.1\r\nHost: other.test\r\nProxy-Authorization: Basic eDp5\r\n\r\n"

// A tunnel works whatever the pieces are in which the request and its first bytes arrive.
func TestConnectSplit(t *testing.T) {
	const data = "\x16\x03\x01 data\r\n\r\n"
	eachMode(t, func(t *testing.T, m mode) {
		s := serve(t, m, testClock(t), connecting())
		all := connectHead + data
		for cut := range len(all) {
			c := s.dial()
			_, _ = io.WriteString(c, all[:cut])
			_, _ = io.WriteString(c, all[cut:])
			_ = c.CloseWrite()
			got, err := io.ReadAll(c)
			want := "HTTP/1.1 200 OK\r\nX-Target: target.test:443\r\n\r\n" + data
			if string(got) != want {
				t.Fatalf("cut at %d: %q, %v", cut, got, err)
			}
			_ = c.Close()
		}
	})
}

// KF_TUN_05: HTTP/1.0 clients get their tunnel, too.
func TestKF_TUN_05_ConnectHTTP10(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		c := serve(t, m, testClock(t), connecting()).dial()
		_, _ = io.WriteString(c, "CONNECT h:443 HTTP/1.0\r\n\r\nhello")
		_ = c.CloseWrite()
		got, err := io.ReadAll(c)
		if want := "HTTP/1.1 200 OK\r\nX-Target: h:443\r\n\r\nhello"; string(got) != want {
			t.Errorf("%q, %v", got, err)
		}
	})
}

func TestConnectRefused(t *testing.T) {
	tests := []struct {
		name, head string
		status     int
	}{
		{"by the handler", "CONNECT refused.test:1 HTTP/1.1\r\nHost: h\r\n\r\n", 403},
		{"what looks like a call", "CONNECT refused.test:1 HTTP/1.1\r\nHost: h\r\nContent-Type: application/grpc\r\n\r\n", 403},
		{"another method", "GET / HTTP/1.1\r\nHost: h\r\n\r\n", 405},
		{"absolute form", "GET http://h/ HTTP/1.1\r\nHost: h\r\n\r\n", 405},
		{"TRACE", "TRACE / HTTP/1.1\r\nHost: h\r\n\r\n", 405},
		{"a length", "CONNECT h:1 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", 400},
		{"chunks", "CONNECT h:1 HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
		{"a path", "CONNECT /a HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		{"a URL", "CONNECT http://h:1 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		{"user information", "CONNECT u@h:1 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		{"a zone", "CONNECT [fe80::1%25eth0]:1 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		{"a port that is none", "CONNECT h:65536 HTTP/1.1\r\nHost: h\r\n\r\n", 400},
		{"no Host", "CONNECT h:1 HTTP/1.1\r\n\r\n", 400},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, m mode) {
				c := serve(t, m, testClock(t), connecting()).dial()
				// What was sent for the tunnel must not be read as another request.
				_, _ = io.WriteString(c, tt.head+"CONNECT smuggled.test:1 HTTP/1.1\r\nHost: h\r\n\r\n")
				_ = c.CloseWrite()
				br := bufio.NewReader(c)
				res, err := http.ReadResponse(br, &http.Request{Method: "CONNECT"})
				if err != nil {
					t.Fatal(err)
				}
				rest, _ := io.ReadAll(br)
				if res.StatusCode != tt.status || !res.Close || strings.Contains(string(rest), "smuggled") || strings.Contains(string(rest), "200 OK") {
					t.Errorf("status %d, close %v, behind it %q", res.StatusCode, res.Close, rest)
				}
			})
		})
	}
}
