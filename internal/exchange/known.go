package exchange

import "bytes"

// FieldID names the fields that the data plane itself looks at, so that the parser classifies each line once.
type FieldID uint8

// Known fields. FieldOther is every other name.
const (
	FieldOther FieldID = iota
	FieldHost
	FieldConnection
	FieldContentLength
	FieldTransferEncoding
	FieldTE
	FieldTrailer
	FieldUpgrade
	FieldKeepAlive
	FieldProxyConnection
	FieldProxyAuthenticate
	FieldProxyAuthorization
	FieldHTTP2Settings
	FieldExpect
	FieldForwarded
	FieldXForwardedFor
	FieldXForwardedHost
	FieldXForwardedProto
	FieldXForwardedPort
	FieldXRealIP
	FieldXRequestID
	FieldTraceparent
	FieldUserAgent
	FieldAccept
	FieldContentType
	FieldAuthorization
	FieldCookie
	// FieldXForwardedOther is any other field whose name begins with X-Forwarded-: what proxies say of a client, its
	// certificate for instance.
	FieldXForwardedOther
	// FieldUnderscored is a forwarding field spelled with underscores, which CGI-like backends take for the real one.
	FieldUnderscored
)

// hop lists the fields that belong to one connection only (RFC 9110 §7.6.1, and the customary ones).
var hop = [...]bool{
	FieldConnection: true, FieldTransferEncoding: true, FieldTE: true, FieldTrailer: true, FieldUpgrade: true,
	FieldKeepAlive: true, FieldProxyConnection: true, FieldProxyAuthenticate: true, FieldProxyAuthorization: true,
	FieldHTTP2Settings: true, FieldUnderscored: false,
}

// HopByHop reports whether the field is never forwarded.
func (id FieldID) HopByHop() bool { return hop[id] }

// FieldSet is a set of known fields.
type FieldSet uint64

// SetOf makes a set.
func SetOf(ids ...FieldID) (s FieldSet) {
	for _, id := range ids {
		s |= 1 << id
	}
	return s
}

// Has reports membership.
func (s FieldSet) Has(id FieldID) bool { return s>>id&1 == 1 }

var knownByLen = buildKnown()

type known struct {
	name string
	id   FieldID
}

func buildKnown() (t [21][]known) {
	for _, k := range []known{
		{"host", FieldHost},
		{"connection", FieldConnection},
		{"content-length", FieldContentLength},
		{"transfer-encoding", FieldTransferEncoding},
		{"te", FieldTE},
		{"trailer", FieldTrailer},
		{"trailers", FieldTrailer},
		{"upgrade", FieldUpgrade},
		{"keep-alive", FieldKeepAlive},
		{"proxy-connection", FieldProxyConnection},
		{"proxy-authenticate", FieldProxyAuthenticate},
		{"proxy-authorization", FieldProxyAuthorization},
		{"http2-settings", FieldHTTP2Settings},
		{"expect", FieldExpect},
		{"forwarded", FieldForwarded},
		{"x-forwarded-for", FieldXForwardedFor},
		{"x-forwarded-host", FieldXForwardedHost},
		{"x-forwarded-proto", FieldXForwardedProto},
		{"x-forwarded-port", FieldXForwardedPort},
		{"x-real-ip", FieldXRealIP},
		{"x-request-id", FieldXRequestID},
		{"traceparent", FieldTraceparent},
		{"user-agent", FieldUserAgent},
		{"accept", FieldAccept},
		{"content-type", FieldContentType},
		{"authorization", FieldAuthorization},
		{"cookie", FieldCookie},
	} {
		t[len(k.name)] = append(t[len(k.name)], k)
	}
	return t
}

// KnownField returns the id of a field name in any case.
func KnownField(name []byte) FieldID {
	if len(name) < len(knownByLen) {
		for _, k := range knownByLen[len(name)] {
			if EqualFold(name, k.name) {
				return k.id
			}
		}
	}
	if len(name) == 0 || name[0]|0x20 != 'x' {
		return FieldOther
	}
	switch underscored := bytes.IndexByte(name, '_') >= 0; {
	case hyphened(name, xForwarded) && !underscored:
		return FieldXForwardedOther
	case underscored && (hyphened(name, xForwarded) || len(name) == len(xRealIP) && hyphened(name, xRealIP)):
		return FieldUnderscored
	}
	return FieldOther
}

// Names of forwarding fields, and what most of them begin with.
const (
	xForwarded = "x-forwarded-"
	xRealIP    = "x-real-ip"
)

// hyphened reports whether name begins like the lower-case prefix once its underscores are read as hyphens.
func hyphened(name []byte, prefix string) bool {
	if len(name) < len(prefix) {
		return false
	}
	for i := range len(prefix) {
		c := name[i]
		switch {
		case c == '_':
			c = '-'
		case 'A' <= c && c <= 'Z':
			c |= 0x20
		}
		if c != prefix[i] {
			return false
		}
	}
	return true
}
