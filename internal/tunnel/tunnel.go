// Package tunnel carries connections between two processes of an installation: one HTTP/2 connection with mutual TLS holds
// many tunnels, each a CONNECT stream; a peer that negotiates HTTP/1.1 gets a connection for each. Pool is the end that
// opens tunnels, Server the one that accepts them. Both live as long as the process, a tunnel as long as who holds it. The
// package knows neither actors nor routes: who may reach what is decided by the functions it is given, and who the peer is by
// the TLS configurations.
package tunnel

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Field is a line of a head.
type Field struct{ Name, Value string }

// Request asks for a tunnel.
type Request struct {
	// Authority is host:port, as it is sent.
	Authority string
	// Fields are sent beside Host. Names and values must be legal ones.
	Fields []Field
	// Within is how long the answer may take, once there is a connection; 0 is as long as the context allows. A deadline of the
	// context costs more.
	Within time.Duration
}

// appendHead spells the request as HTTP/1.1 does; the engines make of it what they need.
func (r *Request) appendHead(b []byte) ([]byte, error) {
	if _, err := exchange.ParseAuthority([]byte(r.Authority)); err != nil {
		return nil, fmt.Errorf("authority %q: %w", r.Authority, err)
	}
	b = append(append(b, "CONNECT "...), r.Authority...)
	b = append(append(append(b, " HTTP/1.1\r\nHost: "...), r.Authority...), "\r\n"...)
	for _, f := range r.Fields {
		if !exchange.ValidName(f.Name) || !exchange.ValidValue(f.Value) {
			return nil, fmt.Errorf("field %q cannot be sent", f.Name)
		}
		b = append(append(append(append(b, f.Name...), ": "...), f.Value...), "\r\n"...)
	}
	return append(b, "\r\n"...), nil
}

// maxBody is how much of the text of a refusal is kept.
const maxBody = 4 << 10

// Refusal is an answer other than 2xx: what Pool.Open returns as its error, and what a Server's Accept may return. No byte of
// the tunnel has been sent then.
type Refusal struct {
	Status int
	Fields []Field
	Body   string // at most 4 KiB
}

// Error names the status.
func (r *Refusal) Error() string {
	text, _, _ := strings.Cut(r.Body, "\n")
	return fmt.Sprintf("tunnel refused with status %d: %.200q", r.Status, text)
}

// Get is the value of the first field of a name, in any case; "" without one.
func (r *Refusal) Get(name string) string {
	for _, f := range r.Fields {
		if strings.EqualFold(f.Name, name) {
			return f.Value
		}
	}
	return ""
}

// refusal reads an answer.
func refusal(status int, f *exchange.Fields, body []byte) *Refusal {
	r := &Refusal{Status: status, Body: string(bytes.ToValidUTF8(body, nil))}
	for name, value := range f.All() {
		r.Fields = append(r.Fields, Field{string(name), string(value)})
	}
	return r
}
