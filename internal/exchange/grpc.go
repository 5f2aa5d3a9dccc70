package exchange

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"strings"
)

// Statuses of gRPC (grpc.io/docs/guides/status-codes) that errors are turned into.
const (
	grpcUnknown           = 2
	grpcDeadlineExceeded  = 4
	grpcPermissionDenied  = 7
	grpcResourceExhausted = 8
	grpcUnimplemented     = 12
	grpcInternal          = 13
	grpcUnavailable       = 14
	grpcUnauthenticated   = 16
)

const grpcType = "application/grpc"

// connectLimit is the one limit of time behind which nothing has been sent, by its configuration key.
const connectLimit = "transport.connect_timeout"

// GRPC reports whether the request is a gRPC call: a POST whose media type is application/grpc, or that with a suffix.
// gRPC-Web is not: for a gateway that is HTTP like any other. Nor is a request that asks for another protocol. Of another
// method none is: errors of calls have status 200, which would open the tunnel of a CONNECT, and caches keep that of a GET.
func (r *Request) GRPC() bool {
	return string(r.Method) == "POST" && r.Upgrade == nil && ofGRPC(&r.Fields)
}

// ofGRPC reports whether a body behind these fields is messages of gRPC.
func ofGRPC(f *Fields) bool {
	v, ok := f.Known(FieldContentType)
	if !ok {
		return false
	}
	if i := bytes.IndexByte(v, ';'); i >= 0 {
		v = v[:i]
	}
	v = trimBlanks(v)
	if len(v) < len(grpcType) || !EqualFold(v[:len(grpcType)], grpcType) {
		return false
	}
	suffix := v[len(grpcType):]
	return len(suffix) == 0 || suffix[0] == '+' && len(suffix) > 1
}

// grpcStatus is what an error is to the client of a gRPC call. Where trying again may help it is UNAVAILABLE, the one status
// that clients retry.
func (e *Error) grpcStatus() int {
	if e.GRPC != 0 {
		return e.GRPC
	}
	if e.Limit == connectLimit {
		return grpcUnavailable
	}
	switch e.Status {
	case 401:
		return grpcUnauthenticated
	case 403:
		return grpcPermissionDenied
	case 404, 405, 501, 505:
		return grpcUnimplemented
	case 408, 504:
		return grpcDeadlineExceeded
	case 413, 414, 429, 431:
		return grpcResourceExhausted
	case 421, 502, 503:
		return grpcUnavailable
	case 400, 417, 500:
		return grpcInternal
	}
	return grpcUnknown
}

// sendGRPC answers a gRPC call: its status stands in the head, and nothing follows ("Trailers-Only" in the protocol's words).
func (x *Exchange) sendGRPC(e *Error) error {
	r := &x.Response
	r.Status, r.ContentLength = 200, 0
	r.Fields.Add("Content-Type", grpcType)
	e.addGRPC(&r.Fields)
	return x.Send(nil, true)
}

// endGRPC ends a gRPC call that has had an answer with trailers that say why, and reports whether it did. Over HTTP/1.1 it
// is the connection that ends: the bytes sent last may lie in the middle of a chunk. Nor is there such an end for an answer
// that is not gRPC: it would look whole.
func (x *Exchange) endGRPC(e *Error) bool {
	if x.Down == nil || x.Request.Protocol == HTTP11 || x.Request.Protocol == HTTP10 || !x.callBegun {
		return false
	}
	x.filters = x.filters[:0]
	t := &x.Response.Trailers
	t.Reset(nil)
	e.addGRPC(t)
	return x.Send(nil, true) == nil
}

// addGRPC adds the fields that carry a status.
func (e *Error) addGRPC(f *Fields) {
	status := e.grpcStatus()
	f.Add("grpc-status", strconv.Itoa(status))
	f.Add("grpc-message", escapeGRPC(e.Public))
	f.Add("grpc-status-details-bin", base64.RawStdEncoding.EncodeToString(e.appendDetails(nil, status)))
}

// errorDomain says whose codes they are, to programs that get errors from many places.
const errorDomain = "sluice"

// appendDetails appends a google.rpc.Status with a google.rpc.ErrorInfo, where clients look for a code that is stable: it
// is ours in upper case, as their convention has it (google.aip.dev/193).
func (e *Error) appendDetails(dst []byte, status int) []byte {
	info := appendProto(nil, 1, strings.ToUpper(string(e.Code)))
	info = appendProto(info, 2, errorDomain)
	detail := appendProto(nil, 1, "type.googleapis.com/google.rpc.ErrorInfo")
	detail = appendProto(detail, 2, string(info))
	dst = append(dst, 1<<3, byte(status))
	dst = appendProto(dst, 2, e.Public)
	return appendProto(dst, 3, string(detail))
}

// appendProto appends a field of a protocol buffer that has a length.
func appendProto(dst []byte, number byte, value string) []byte {
	const lengthDelimited = 2
	dst = binary.AppendUvarint(append(dst, number<<3|lengthDelimited), uint64(len(value)))
	return append(dst, value...)
}

// escapeGRPC spells a text as grpc-message does: percent signs and what is not printable ASCII as %XX.
func escapeGRPC(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '%' {
			b.WriteString(string([]byte{'%', hex[c>>4], hex[c&15]}))
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
