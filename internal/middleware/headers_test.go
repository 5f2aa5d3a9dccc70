package middleware_test

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

var headers = &config.Middleware{Name: "h", Type: "headers", Headers: &config.Headers{
	Request: []config.HeaderValue{
		{Name: "X-Team", Value: "search"}, {Name: "X-Empty"}, {Name: "host", Value: "inner.test:8080"},
	},
	Response: []config.HeaderValue{{Name: "Server", Value: "edge"}, {Name: "X-Frame-Options", Value: "DENY"}},
}}

func TestHeaders(t *testing.T) {
	x, c := request("/", "")
	x.Request.Fields.Add("x-team", "spoofed")
	x.Request.Fields.Add("X-TEAM", "twice")
	serve(t, headers, x, func(x *exchange.Exchange) error {
		wantField(t, &x.Request.Fields, "x-team", "search")
		wantField(t, &x.Request.Fields, "x-empty", "")
		if got := string(x.Request.Host); got != "inner.test:8080" {
			t.Errorf("the authority is %q", got)
		}
		if x.Request.Fields.Has(exchange.FieldHost) {
			t.Error("the authority was also set as a field")
		}
		x.Response.Status = 200
		x.Response.Fields.Add("server", "backend")
		return x.Send(nil, true)
	})
	wantField(t, &c.fields, "server", "edge")
	wantField(t, &c.fields, "x-frame-options", "DENY")
}

// TestHeadersOnErrors: answers of the gateway itself carry the fields of the middlewares already entered.
func TestHeadersOnErrors(t *testing.T) {
	x, c := request("/", "")
	serve(t, headers, x, func(*exchange.Exchange) error {
		return exchange.Reject(403, exchange.CodeBadRequest, "no")
	})
	if c.status != 403 {
		t.Errorf("status is %d", c.status)
	}
	wantField(t, &c.fields, "x-frame-options", "DENY")
	wantField(t, &c.fields, "content-type", "application/json")
}

// TestHeadersOrder: response fields are set right to left, so the first in the chain has the last word.
func TestHeadersOrder(t *testing.T) {
	say := func(v string) *config.Middleware {
		h := []config.HeaderValue{{Name: "X-Said", Value: v}}
		return &config.Middleware{Name: v, Type: "headers", Headers: &config.Headers{Request: h, Response: h}}
	}
	x, c := request("/", "")
	inner := build(t, say("second"), func(x *exchange.Exchange) error {
		wantField(t, &x.Request.Fields, "x-said", "second")
		x.Response.Status = 200
		return x.Send(nil, true)
	})
	serve(t, say("first"), x, inner.Serve)
	wantField(t, &c.fields, "x-said", "first")
}

// wantField wants exactly one field of that name.
func wantField(t *testing.T, f *exchange.Fields, name, want string) {
	t.Helper()
	n := 0
	for v := range f.Values(name) {
		if n++; string(v) != want {
			t.Errorf("%s is %q, want %q", name, v, want)
		}
	}
	if n != 1 {
		t.Errorf("%s is there %d times", name, n)
	}
}
