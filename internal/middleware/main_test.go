package middleware_test

import (
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/middleware"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client is the client's end of an exchange: it remembers what it was sent.
type client struct {
	exchange.Downstream // nil: a method that no test needs would panic

	status int
	fields exchange.Fields
	body   []byte
}

func (c *client) SendHead(x *exchange.Exchange, body []byte, _ bool) error {
	c.status = x.Response.Status
	c.fields.CopyFrom(&x.Response.Fields)
	c.body = append(c.body, body...)
	return nil
}

// request returns an exchange with a path and query in normal form.
func request(path, query string) (*exchange.Exchange, *client) {
	c := &client{}
	x := &exchange.Exchange{}
	x.Begin(c, &conn.Alarm{}, &conn.Info{Remote: netip.MustParseAddrPort("192.0.2.1:1000")}, time.Now())
	x.Request.Path, x.Request.Normal = []byte(path), []byte(path)
	x.Request.Target = []byte(path)
	if query != "" {
		x.Request.Query = []byte(query)
		x.Request.Target = []byte(path + "?" + query)
	}
	x.Request.Host = []byte("client.test")
	return x, c
}

// serve builds one middleware around next, and serves x as an engine does.
func serve(t testing.TB, cfg *config.Middleware, x *exchange.Exchange, next exchange.HandlerFunc) {
	t.Helper()
	x.Fail(build(t, cfg, next).Serve(x))
}

func build(t testing.TB, cfg *config.Middleware, next exchange.HandlerFunc) exchange.Handler {
	t.Helper()
	scope := middleware.NewLimits().Scope()
	t.Cleanup(scope.Close)
	h, err := middleware.Build(cfg, middleware.Deps{Router: "r", Limits: scope}, next)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func nothing(*exchange.Exchange) error { return nil }

func TestBuildRefuses(t *testing.T) {
	set := func(h config.Headers) *config.Middleware {
		return &config.Middleware{Name: "m", Type: "headers", Headers: &h}
	}
	one := func(n, v string) []config.HeaderValue { return []config.HeaderValue{{Name: n, Value: v}} }
	for name, cfg := range map[string]*config.Middleware{
		"unknown type":         {Name: "m", Type: "jwt"},
		"headers without":      {Name: "m", Type: "headers"},
		"rate-limit without":   {Name: "m", Type: "rate-limit"},
		"strip-prefix without": {Name: "m", Type: "strip-prefix"},
		"hop by hop":           set(config.Headers{Request: one("Connection", "x")}),
		"framing":              set(config.Headers{Request: one("content-length", "1")}),
		"framing 2":            set(config.Headers{Response: one("Transfer-Encoding", "chunked")}),
		"name":                 set(config.Headers{Response: one("a b", "1")}),
		"value":                set(config.Headers{Response: one("A", "1\r\nB: 2")}),
	} {
		scope := middleware.NewLimits().Scope()
		if _, err := middleware.Build(cfg, middleware.Deps{Limits: scope}, exchange.HandlerFunc(nothing)); err == nil {
			t.Errorf("%s: built", name)
		}
	}
}
