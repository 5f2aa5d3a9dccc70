package websocket

import (
	"crypto/rand"
	"crypto/sha1"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Version is the only version of the protocol (RFC 6455 section 4.1).
const Version = "13"

// KeyLen is the length of a Sec-WebSocket-Key: 16 bytes in base64.
const KeyLen = 24

// Names of fields, as lookups want them.
const (
	fieldKey      = "sec-websocket-key"
	fieldVersion  = "sec-websocket-version"
	fieldAccept   = "sec-websocket-accept"
	fieldProtocol = "sec-websocket-protocol"
)

// Check judges a request that asks for WebSocket (Request.Upgrade is set) before anybody acts on it: RFC 6455 section
// 4.2.1, and over HTTP/2 RFC 8441 section 5. It returns the client's key, a view, which is nil over HTTP/2; or the
// refusal: 400, and 426 for another version of the protocol. Fields of the connection are gone afterwards: what of the
// handshake a Connection field names would not reach a backend.
func Check(x *exchange.Exchange) (key []byte, err error) {
	r := &x.Request
	over2 := r.Protocol == exchange.HTTP2
	switch {
	case !over2 && string(r.Method) != "GET":
		return nil, invalid("method is not GET")
	case !over2 && r.Protocol != exchange.HTTP11:
		return nil, invalid("version is not HTTP/1.1")
	case !over2 && !wantsUpgrade(&r.Fields):
		return nil, invalid("Connection has no option upgrade")
	case !over2 && r.ContentLength != 0:
		return nil, invalid("request has a body")
	}
	r.Fields.StripHopByHop()
	version, n := only(&r.Fields, fieldVersion)
	if n != 1 {
		return nil, invalid(fmt.Sprintf("Sec-WebSocket-Version comes %d times", n))
	}
	if string(version) != Version {
		x.OnHead(wanted{})
		e := exchange.Reject(426, exchange.CodeUpgradeRequired, "WebSocket version not supported")
		e.Err = exchange.Fault("Sec-WebSocket-Version is not 13")
		return nil, e
	}
	if over2 {
		return nil, nil
	}
	key, n = only(&r.Fields, fieldKey)
	if n != 1 {
		return nil, invalid(fmt.Sprintf("Sec-WebSocket-Key comes %d times", n))
	}
	if !validKey(key) {
		return nil, invalid("Sec-WebSocket-Key is not 16 bytes in base64")
	}
	return key, nil
}

// Required is the refusal of a request that does not ask for WebSocket where nothing else is spoken.
func Required(x *exchange.Exchange) error {
	x.OnHead(wanted{})
	return exchange.Reject(426, exchange.CodeUpgradeRequired, "WebSocket required")
}

func invalid(why string) error {
	e := exchange.Reject(400, exchange.CodeBadHandshake, "Invalid WebSocket handshake")
	e.Err = exchange.Fault(why)
	return e
}

// wanted tells what would have been accepted: RFC 6455 section 4.4, RFC 9110 section 15.5.22.
type wanted struct{}

// ResponseHead adds the fields. Those of the connection are the engine's to make.
func (wanted) ResponseHead(x *exchange.Exchange) {
	x.Response.Fields.Set("Sec-WebSocket-Version", Version)
	x.Response.Upgrade = []byte("websocket")
}

// wantsUpgrade reports whether a Connection field has the option upgrade.
func wantsUpgrade(f *exchange.Fields) bool {
	for v := range f.Values("connection") {
		for option := range exchange.Tokens(v) {
			if exchange.EqualFold(option, "upgrade") {
				return true
			}
		}
	}
	return false
}

// only returns the first value of a field, and how many there are.
func only(f *exchange.Fields, name string) (value []byte, n int) {
	for v := range f.Values(name) {
		if n++; n == 1 {
			value = v
		}
	}
	return value, n
}

// validKey reports whether k is 16 bytes in base64, padded and without spare bits.
func validKey(k []byte) bool {
	if len(k) != KeyLen {
		return false
	}
	var b [18]byte
	n, err := base64.StdEncoding.Strict().Decode(b[:], k)
	return err == nil && n == 16
}

// AppendKey appends a new Sec-WebSocket-Key, for a handshake that the gateway makes itself.
func AppendKey(b []byte) []byte {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	return base64.StdEncoding.AppendEncode(b, raw[:])
}

// guid is RFC 6455's, section 1.3.
const guid = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

// AppendAccept appends the Sec-WebSocket-Accept that answers a key.
func AppendAccept(b, key []byte) []byte {
	var buf [KeyLen + len(guid)]byte
	sum := sha1.Sum(append(append(buf[:0], key...), guid...))
	return base64.StdEncoding.AppendEncode(b, sum[:])
}

// Verify holds a backend's 101 against the handshake that it answers (RFC 6455 section 4.1): its Accept must be that of
// the key, and a subprotocol one of those offered. Extensions are the client's to judge.
func Verify(key []byte, offer, answer *exchange.Fields) error {
	var want [28]byte
	got, n := only(answer, fieldAccept)
	if n != 1 || string(got) != string(AppendAccept(want[:0], key)) {
		return errors.New("101 without the Sec-WebSocket-Accept of the key")
	}
	chosen, n := only(answer, fieldProtocol)
	if n == 0 {
		return nil
	}
	if n > 1 {
		return errors.New("101 with several subprotocols")
	}
	for v := range offer.Values(fieldProtocol) {
		for p := range exchange.Tokens(v) {
			if string(p) == string(chosen) {
				return nil
			}
		}
	}
	return errors.New("101 with a subprotocol that was not offered")
}
