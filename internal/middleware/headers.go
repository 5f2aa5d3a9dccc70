package middleware

import (
	"fmt"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Headers sets fields of requests before, and of responses after, everything behind it. A field that is there is
// replaced; an empty value sets an empty field. Response fields are set on the gateway's own answers too.
type Headers struct {
	request  []config.HeaderValue // without Host
	response []config.HeaderValue
	host     []byte // nil: the request's authority stays
	next     exchange.Handler
}

func newHeaders(cfg *config.Middleware, _ Deps, next exchange.Handler) (exchange.Handler, error) {
	if cfg.Headers == nil {
		return nil, errNoBlock(cfg.Type)
	}
	h := &Headers{response: cfg.Headers.Response, next: next}
	for _, f := range cfg.Headers.Request {
		if err := settable(f); err != nil {
			return nil, fmt.Errorf("request_headers: %w", err)
		}
		if exchange.KnownField([]byte(f.Name)) == exchange.FieldHost {
			h.host = append(make([]byte, 0, len(f.Value)), f.Value...)
			continue
		}
		h.request = append(h.request, f)
	}
	for _, f := range h.response {
		if err := settable(f); err != nil {
			return nil, fmt.Errorf("response_headers: %w", err)
		}
	}
	return h, nil
}

// settable refuses what would break the message: the framing and the hops belong to the engine. The value never
// appears in the error.
func settable(f config.HeaderValue) error {
	id := exchange.KnownField([]byte(f.Name))
	switch {
	case !exchange.ValidName(f.Name):
		return fmt.Errorf("%q is not a field name", f.Name)
	case id.HopByHop() || id == exchange.FieldContentLength:
		return fmt.Errorf("%s cannot be set", f.Name)
	case !exchange.ValidValue(f.Value):
		return fmt.Errorf("the value of %s cannot be sent", f.Name)
	}
	return nil
}

// Serve sets the request fields and goes on.
func (h *Headers) Serve(x *exchange.Exchange) error {
	for i := range h.request {
		x.Request.Fields.Set(h.request[i].Name, h.request[i].Value)
	}
	if h.host != nil {
		x.Request.Host = h.host
	}
	if len(h.response) > 0 {
		x.OnHead(h)
	}
	return h.next.Serve(x)
}

// ResponseHead sets the response fields.
func (h *Headers) ResponseHead(x *exchange.Exchange) {
	for i := range h.response {
		x.Response.Fields.Set(h.response[i].Name, h.response[i].Value)
	}
}
