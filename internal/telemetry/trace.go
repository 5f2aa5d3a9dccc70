package telemetry

import (
	"crypto/rand"
	"encoding/hex"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Lengths of the parts of a traceparent field (W3C Trace Context §3.2).
const (
	traceIDAt   = 3
	traceIDEnd  = traceIDAt + 32
	parentIDAt  = traceIDEnd + 1
	parentIDEnd = parentIDAt + 16
	flagsAt     = parentIDEnd + 1
	flagsEnd    = flagsAt + 2
)

// maxTraceparent bounds what a version yet to come may append.
const maxTraceparent = 512

// ParseTraceparent returns the trace id of a traceparent field, a view of v. Versions after 00 are read by the rule
// for unknown ones: the first four parts must be as in 00, more may follow after a dash. Version ff, ids of zeros
// only and upper-case digits are refused.
func ParseTraceparent(v []byte) (traceID []byte, ok bool) {
	if len(v) < flagsEnd || len(v) > maxTraceparent || v[traceIDAt-1] != '-' || v[traceIDEnd] != '-' || v[parentIDEnd] != '-' {
		return nil, false
	}
	if !lowerHex(v[:2]) || !lowerHex(v[flagsAt:flagsEnd]) || !id(v[traceIDAt:traceIDEnd]) || !id(v[parentIDAt:parentIDEnd]) {
		return nil, false
	}
	switch version := string(v[:2]); {
	case version == "ff":
		return nil, false
	case len(v) > flagsEnd && (version == "00" || v[flagsEnd] != '-'):
		return nil, false
	}
	return v[traceIDAt:traceIDEnd], true
}

// id reports lower-case hex digits that are not all zero.
func id(v []byte) bool {
	var any byte
	for _, c := range v {
		any |= c ^ '0'
	}
	return any != 0 && lowerHex(v)
}

func lowerHex(v []byte) bool {
	for _, c := range v {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// ValidRequestID reports whether a client's request id is kept: 1 to 128 visible ASCII characters.
func ValidRequestID(v []byte) bool {
	for _, c := range v {
		if c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return len(v) >= 1 && len(v) <= 128
}

// Identify sets the request and trace ids of the record from the fields of the request. A client's request id is
// kept if it is valid and stands there once; otherwise there is a new one.
func Identify(x *exchange.Exchange) {
	f := &x.Request.Fields
	var given []byte
	n := 0
	for v := range f.Values("x-request-id") {
		given = v
		n++
	}
	if n == 1 && ValidRequestID(given) {
		x.SetRequestID(given)
	} else {
		var raw [16]byte
		var text [32]byte
		rand.Read(raw[:]) // never fails: the program would have ended
		hex.Encode(text[:], raw[:])
		x.SetRequestID(text[:])
	}
	var parent []byte
	n = 0
	for v := range f.Values("traceparent") {
		parent = v
		n++
	}
	if traceID, ok := ParseTraceparent(parent); ok && n == 1 {
		x.SetTraceID(traceID)
	}
}
