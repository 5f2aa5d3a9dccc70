package proxy_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// seen returns the head that a backend gets for a request.
func seen(t *testing.T, m mode, o options, base, request string) string {
	t.Helper()
	heads := make(chan string, 1)
	b := newBackend(t, func(p *peer) {
		for p.next() {
			h := p.head()
			heads <- h
			if strings.Contains(h, "Content-Length: 2") {
				p.bytes(2)
			}
			p.send(ok)
		}
	})
	g := newGateway(t, m, o, b.addr+base)
	if a := g.ask(t, request); a.status() != "200" || a.body != "ok" {
		t.Fatalf("%+v", a)
	}
	return strings.ReplaceAll(<-heads, b.addr, "BACKEND")
}

// forwardedAs are the fields that the gateway adds, for a client on the loopback address.
func forwardedAs(host, scheme, port string) string {
	return "X-Forwarded-For: 127.0.0.1\r\nX-Real-Ip: 127.0.0.1\r\nX-Forwarded-Host: " + host +
		"\r\nX-Forwarded-Proto: " + scheme + "\r\nX-Forwarded-Port: " + port + "\r\nX-Request-Id: made\r\n"
}

// The whole request head, byte for byte.
func TestRequestHead(t *testing.T) {
	std := forwardedAs("a.test", "http", "80")
	rewrite := func(path, query string) options {
		return options{before: func(x *exchange.Exchange) {
			x.Request.Path, x.Request.Rewritten = []byte(path), true
			if x.Request.Query = nil; query != "" {
				x.Request.Query = []byte(query)
			}
		}}
	}
	noPass := options{service: func(l *config.LoadBalancer) { l.PassHost = false }}
	normal := options{before: func(x *exchange.Exchange) { x.Request.Normal = []byte("/normal") }}
	for _, tt := range []struct {
		name          string
		o             options
		base          string
		request, want string
	}{
		{"plain", options{}, "", get, "GET / HTTP/1.1\r\nHost: a.test\r\n" + std + "\r\n"},
		{
			"fields keep case, order and repetition",
			options{},
			"",
			"GET /x?y=1&z HTTP/1.1\r\nhOST: a.test\r\ncOOkie: a\r\nAccept: */*\r\ncOOkie: b\r\nX-Empty:\r\nX-Tab: \ta b\t \r\n\r\n",
			"GET /x?y=1&z HTTP/1.1\r\nHost: a.test\r\ncOOkie: a\r\nAccept: */*\r\ncOOkie: b\r\nX-Empty:\r\nX-Tab: \ta b\t \r\n" + std + "\r\n",
		},
		{"the target is forwarded as it came", normal, "", "GET /a/../%41//b HTTP/1.1\r\nHost: a.test\r\n\r\n", "GET /a/../%41//b HTTP/1.1\r\nHost: a.test\r\n" + std + "\r\n"},
		{"a base path goes before the normal form", normal, "/base", "GET /a/../%41?q=/../ HTTP/1.1\r\nHost: a.test\r\n\r\n", "GET /base/normal?q=/../ HTTP/1.1\r\nHost: a.test\r\n" + std + "\r\n"},
		{"a base path with a slash", options{}, "/base/", get, "GET /base/ HTTP/1.1\r\nHost: a.test\r\n" + std + "\r\n"},
		{"a rewritten path", rewrite("/new", "k=v"), "", "GET /old?x HTTP/1.1\r\nHost: a.test\r\n\r\n", "GET /new?k=v HTTP/1.1\r\nHost: a.test\r\n" + std + "\r\n"},
		{"a rewritten path behind a base", rewrite("/new", ""), "/b", "GET /old?x HTTP/1.1\r\nHost: a.test\r\n\r\n", "GET /b/new HTTP/1.1\r\nHost: a.test\r\n" + std + "\r\n"},
		{"an absolute target", options{}, "", "GET http://b.test:81/x?y HTTP/1.1\r\nHost: a.test\r\n\r\n", "GET /x?y HTTP/1.1\r\nHost: b.test:81\r\n" + forwardedAs("b.test:81", "http", "81") + "\r\n"},
		{"an absolute target without a path", options{}, "", "GET http://b.test?y HTTP/1.1\r\nHost: b.test\r\n\r\n", "GET /?y HTTP/1.1\r\nHost: b.test\r\n" + forwardedAs("b.test", "http", "80") + "\r\n"},
		{"asterisk", options{}, "", "OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: a.test\r\n" + std + "\r\n"},
		{"asterisk behind a base", options{}, "/b", "OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: a.test\r\n" + std + "\r\n"},
		{"host of the backend", noPass, "", get, "GET / HTTP/1.1\r\nHost: BACKEND\r\n" + std + "\r\n"},
		{"host of an IPv6 client", options{}, "", "GET / HTTP/1.1\r\nHost: [::1]\r\n\r\n", "GET / HTTP/1.1\r\nHost: [::1]\r\n" + forwardedAs("[::1]", "http", "80") + "\r\n"},
		{"HTTP/1.0 without a host", options{}, "", "GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: BACKEND\r\n" + strings.Replace(std, "X-Forwarded-Host: a.test\r\n", "", 1) + "\r\n"},
		{"an inline body", options{}, "", "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 2\r\n\r\n{}", "POST / HTTP/1.1\r\nHost: a.test\r\n" + std + "Content-Length: 2\r\n\r\n"},
		{"no body where one is usual", options{}, "", "POST / HTTP/1.1\r\nHost: a.test\r\n\r\n", "POST / HTTP/1.1\r\nHost: a.test\r\n" + std + "Content-Length: 0\r\n\r\n"},
		{"a length of zero where none is usual", options{}, "", "GET / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 0\r\n\r\n", "GET / HTTP/1.1\r\nHost: a.test\r\n" + std + "\r\n"},
		{"a request id", options{}, "", "GET / HTTP/1.1\r\nHost: a.test\r\nx-request-id: theirs\r\n\r\n", "GET / HTTP/1.1\r\nHost: a.test\r\n" + strings.Replace(std, "made", "theirs", 1) + "\r\n"},
		{"expect without a body", options{}, "", "GET / HTTP/1.1\r\nHost: a.test\r\nExpect: 100-continue\r\n\r\n", "GET / HTTP/1.1\r\nHost: a.test\r\n" + std + "\r\n"},
		{ // KF-H1-01
			"every Connection line counts",
			options{},
			"",
			"GET / HTTP/1.1\r\nHost: a.test\r\nConnection:\r\nX-One: 1\r\nConnection: X-Secret, x-one\r\nX-Secret: 1\r\nConnection: close ,, Te\r\nTE: trailers\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\nProxy-Authorization: Basic x\r\nX-Kept: 1\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: a.test\r\nX-Kept: 1\r\n" + std + "\r\n",
		},
		{ // what must not be removed that way
			"Connection does not remove what is ours",
			options{},
			"",
			"POST / HTTP/1.1\r\nHost: a.test\r\nConnection: host, content-length, x-forwarded-for, x-real-ip, forwarded\r\nContent-Length: 2\r\n\r\n{}",
			"POST / HTTP/1.1\r\nHost: a.test\r\n" + std + "Content-Length: 2\r\n\r\n",
		},
		{ // KF-H1-02
			"an upgrade to h2c is dropped",
			options{},
			"",
			"GET / HTTP/1.1\r\nHost: a.test\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: a.test\r\n" + std + "\r\n",
		},
		{ // KF-H1-12
			"a client says nothing about itself",
			options{},
			"",
			"GET / HTTP/1.1\r\nHost: a.test\r\nX_Forwarded_For: 1.1.1.1\r\nX_Real_Ip: 1.1.1.1\r\nX-Forwarded-For: 2.2.2.2\r\nx-forwarded_proto: https\r\nX-REAL-IP: 3\r\nX-Forwarded-Host: evil\r\nX-Forwarded-Port: 1\r\nX-Forwarded-Proto: https\r\nForwarded: for=4.4.4.4\r\nx_forwarded_for: 5\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: a.test\r\n" + std + "\r\n",
		},
		{
			"traceparent passes",
			options{},
			"",
			"GET / HTTP/1.1\r\nHost: a.test\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: a.test\r\ntraceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n" + std + "\r\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inModes(t, func(t *testing.T, m mode) {
				want := tt.want
				if m.tls {
					want = strings.Replace(want, "X-Forwarded-Proto: http\r\n", "X-Forwarded-Proto: https\r\n", 1)
					want = strings.Replace(want, "X-Forwarded-Port: 80\r\n", "X-Forwarded-Port: 443\r\n", 1)
				}
				if got := seen(t, m, tt.o, tt.base, tt.request); got != want {
					t.Errorf("backend got\n%q, want\n%q", got, want)
				}
			})
		})
	}
}

// A trusted proxy in front is believed.
func TestForwardedFieldsOfTrustedPeer(t *testing.T) {
	trusted := options{before: func(x *exchange.Exchange) {
		x.Trusted = true
		x.SetClient(netip.MustParseAddr("2001:db8::1"))
	}}
	for _, tt := range []struct{ name, sent, want string }{
		{"nothing said", "", "X-Forwarded-For: 127.0.0.1\r\nX-Real-Ip: 2001:db8::1\r\nX-Forwarded-Host: a.test:8080\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Port: 8080\r\n"},
		{
			"a chain in two lines", "X-Forwarded-For: 2001:db8::1\r\nForwarded: for=x\r\nX-Forwarded-For: 10.0.0.1, 10.0.0.2\r\nX-Real-Ip: 9.9.9.9\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: b.test\r\nX_Forwarded_For: 6.6.6.6\r\n",
			"Forwarded: for=x\r\nX-Forwarded-For: 2001:db8::1, 10.0.0.1, 10.0.0.2, 127.0.0.1\r\nX-Real-Ip: 2001:db8::1\r\nX-Forwarded-Host: b.test\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Port: 443\r\n",
		},
		{
			"a port", "X-Forwarded-Port: 8443\r\nX-Forwarded-Host:\r\nX-Forwarded-For:\r\n",
			"X-Forwarded-For: 127.0.0.1\r\nX-Real-Ip: 2001:db8::1\r\nX-Forwarded-Host: a.test:8080\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Port: 8443\r\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := seen(t, kernelMode, trusted, "", "GET / HTTP/1.1\r\nHost: a.test:8080\r\n"+tt.sent+"\r\n")
			if want := "GET / HTTP/1.1\r\nHost: a.test:8080\r\n" + tt.want + "X-Request-Id: made\r\n\r\n"; got != want {
				t.Errorf("backend got\n%q, want\n%q", got, want)
			}
		})
	}
}

// The response head, byte for byte.
func TestResponseHead(t *testing.T) {
	for _, tt := range []struct{ name, request, answer, want string }{
		{
			"fields keep case, order and repetition", get,
			"HTTP/1.1 200 Fine By Me\r\nset-Cookie: a\r\nServer: x\r\nset-Cookie: b\r\nX-Request-Id: backend\r\nContent-Length: 2\r\n\r\nok",
			"HTTP/1.1 200 OK\r\nset-Cookie: a\r\nServer: x\r\nset-Cookie: b\r\nX-Request-Id: made\r\nContent-Length: 2\r\n\r\nok",
		},
		{
			"what concerns the connection stays behind", get,
			"HTTP/1.1 404 Not Found\r\nConnection:\r\nConnection: X-Secret, close\r\nX-Secret: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nUpgrade: h2c\r\nTrailer: x\r\nContent-Length: 0\r\n\r\n",
			"HTTP/1.1 404 Not Found\r\nX-Request-Id: made\r\nContent-Length: 0\r\n\r\n",
		},
		{"chunks", get, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;ext=1\r\nok\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\nX-Request-Id: made\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"},
		{"HEAD", "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", "HTTP/1.1 200 OK\r\nX-Request-Id: made\r\nContent-Length: 1000\r\n\r\n"},
		{"HEAD of chunks", "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK\r\nX-Request-Id: made\r\n\r\n"},
		{"204", get, "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 204 No Content\r\nX-Request-Id: made\r\n\r\n"},
		{"304 with a length", get, "HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 70\r\n\r\n", "HTTP/1.1 304 Not Modified\r\nETag: x\r\nX-Request-Id: made\r\nContent-Length: 70\r\n\r\n"},
		{"an unknown status", get, "HTTP/1.1 799 Odd\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 799 \r\nX-Request-Id: made\r\nContent-Length: 0\r\n\r\n"},
		{"no reason", get, "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\nX-Request-Id: made\r\nContent-Length: 0\r\n\r\n"},
		{"an HTTP/1.0 client that wants to stay", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", ok, "HTTP/1.1 200 OK\r\nX-Request-Id: made\r\nContent-Length: 2\r\nConnection: keep-alive\r\n\r\nok"},
		{"an HTTP/1.0 client and chunks", "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\nX-Request-Id: made\r\nConnection: close\r\n\r\nok"},
		{"an HTTP/1.0 backend", get, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "HTTP/1.1 200 OK\r\nX-Request-Id: made\r\nContent-Length: 2\r\n\r\nok"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBackend(t, replies(tt.answer))
			inModes(t, func(t *testing.T, m mode) {
				g := newGateway(t, m, options{}, b.addr)
				c := g.dial(t)
				for range 2 { // the second on whatever is left of both connections
					c.send(tt.request)
					c.expect(tt.want)
					if strings.Contains(tt.want, "Connection: close") {
						if rest, err := c.closed(patience); rest != "" || err != nil {
							t.Fatalf("%q, %v", rest, err)
						}
						c = g.dial(t)
					}
				}
			})
		})
	}
}

// A body that ends with the connection.
func TestCloseDelimitedResponse(t *testing.T) {
	b := newBackend(t, func(p *peer) {
		p.message(false)
		p.send("HTTP/1.0 200 OK\r\nX: y\r\n\r\nall of ")
		p.quiet(10e6)
		p.send("it")
	})
	inModes(t, func(t *testing.T, m mode) {
		g := newGateway(t, m, options{}, b.addr)
		c := g.dial(t)
		for range 2 {
			c.send(get)
			if a := c.message(false); a.body != "all of it" || a.header.Get("Transfer-Encoding") != "chunked" {
				t.Fatalf("%+v", a)
			}
		}
		if a := g.ask(t, "GET / HTTP/1.0\r\n\r\n"); a.body != "all of it" || a.header.Get("Transfer-Encoding") != "" {
			t.Fatalf("%+v", a)
		}
	})
}

// Heads that break the protocol never reach a client.
func TestMalformedResponseHeads(t *testing.T) {
	for name, answer := range map[string]string{
		"not HTTP":                   "SSH-2.0-OpenSSH_9.6 whatever\r\n\r\n",
		"HTTP/2":                     "HTTP/2.0 200 OK\r\n\r\n",
		"status of two digits":       "HTTP/1.1 20 OK and more\r\n\r\n",
		"status of four digits":      "HTTP/1.1 2000 OK\r\n\r\n",
		"status 099":                 "HTTP/1.1 099 OK\r\n\r\n",
		"bare LF":                    "HTTP/1.1 200 OK\nContent-Length: 0\n\n",
		"bare LF in a field":         "HTTP/1.1 200 OK\r\nA: b\nContent-Length: 0\r\n\r\n",
		"folded field":               "HTTP/1.1 200 OK\r\nA: b\r\n c\r\nContent-Length: 0\r\n\r\n",
		"blank before the colon":     "HTTP/1.1 200 OK\r\nA : b\r\nContent-Length: 0\r\n\r\n",
		"no name":                    "HTTP/1.1 200 OK\r\n: b\r\nContent-Length: 0\r\n\r\n",
		"no colon":                   "HTTP/1.1 200 OK\r\nabc\r\nContent-Length: 0\r\n\r\n",
		"NUL in a value":             "HTTP/1.1 200 OK\r\nA: b\x00c\r\nContent-Length: 0\r\n\r\n",
		"two lengths":                "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok!",
		"two equal lengths":          "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok",
		"signed length":              "HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok",
		"list of lengths":            "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok",
		"length and chunks":          "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
		"unknown coding":             "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"chunks in HTTP/1.0":         "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"101 that nobody asked for":  "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"too long":                   "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 200<<10) + "\r\n\r\n",
		"too many fields":            "HTTP/1.1 200 OK\r\n" + strings.Repeat("A: b\r\n", 600) + "\r\n",
		"interim and then nonsense":  "HTTP/1.1 103 Early Hints\r\n\r\nnonsense, which is no status line\r\n\r\n",
		"interim that is too long":   "HTTP/1.1 103 Early Hints\r\nA: " + strings.Repeat("x", 200<<10) + "\r\n\r\n" + ok,
		"chunked 204":                "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"empty line before the head": "\r\n" + ok,
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, func(p *peer) {
				p.message(false)
				_, _ = p.Write([]byte(answer))
				p.gone(patience)
			})
			g := newGateway(t, kernelMode, options{}, b.addr)
			c := g.dial(t)
			c.send(get)
			a := c.message(false)
			for strings.HasPrefix(a.line, "HTTP/1.1 103") {
				a = c.message(false)
			}
			if a.status() != "502" || !strings.Contains(a.body, `"code":"bad_backend_response"`) {
				t.Fatalf("%+v", a)
			}
			r := g.ended(0, exchange.OutcomeFailed, exchange.CodeBadResponse, "")
			if len(r.Attempts) != 1 || r.Attempts[0].Code != exchange.CodeBadResponse {
				t.Errorf("attempts %+v", r.Attempts)
			}
			// The client's connection is not to blame.
			c.send(get)
			if a := c.message(false); a.status() == "" && !strings.HasPrefix(a.line, "HTTP/1.1 103") {
				t.Fatalf("%+v", a)
			}
		})
	}
}

// The status of backends that fail before their head is the service's choice.
func TestUpstreamErrorStatus(t *testing.T) {
	o := options{service: func(l *config.LoadBalancer) { l.UpstreamErrorStatus = 503 }}
	for name, script := range map[string]func(p *peer){
		"backend_reset":        func(p *peer) { p.message(false) },
		"bad_backend_response": replies("nonsense of a certain length\r\n"),
	} {
		b := newBackend(t, script)
		g := newGateway(t, kernelMode, o, b.addr)
		if a := g.ask(t, get); a.status() != "503" || a.body != `{"error":"Service unavailable","code":"`+name+`","request_id":"made"}` {
			t.Errorf("%+v", a)
		}
	}
	g := newGateway(t, kernelMode, o, refusing(t))
	if a := g.ask(t, get); a.status() != "503" || !strings.Contains(a.body, "connect_failed") || a.header.Get("Content-Type") != "application/json" || a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%+v", a)
	}
}
