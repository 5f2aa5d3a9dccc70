package http2

import (
	"strconv"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Heads are encoded without any state: names of the static table by their index, everything else as literals that are not
// indexed (RFC 7541 §6.2.2). That needs no table that streams would have to share, nor an order of blocks.

// noTable tells the client, in front of the connection's first block, that its table stays empty (RFC 7541 §4.2).
const noTable = 0x20

// continueBlock is the block of 100 (Continue).
var continueBlock = []byte("\x08\x03100")

// staticNames are the names of the static table (RFC 7541 appendix A) that a message may have, by their length: few have the
// same, so that looking through them is cheaper than hashing.
var staticNames = byLength(map[string]byte{
	"accept-charset": 15, "accept-encoding": 16, "accept-language": 17, "accept-ranges": 18, "accept": 19,
	"access-control-allow-origin": 20, "age": 21, "allow": 22, "authorization": 23, "cache-control": 24,
	"content-disposition": 25, "content-encoding": 26, "content-language": 27, "content-length": 28, "content-location": 29,
	"content-range": 30, "content-type": 31, "cookie": 32, "date": 33, "etag": 34, "expect": 35, "expires": 36, "from": 37,
	"if-match": 39, "if-modified-since": 40, "if-none-match": 41, "if-range": 42, "if-unmodified-since": 43,
	"last-modified": 44, "link": 45, "location": 46, "max-forwards": 47, "proxy-authenticate": 48, "proxy-authorization": 49,
	"range": 50, "referer": 51, "refresh": 52, "retry-after": 53, "server": 54, "set-cookie": 55,
	"strict-transport-security": 56, "user-agent": 58, "vary": 59, "via": 60, "www-authenticate": 61,
})

// maxStatic is the length of the longest of them.
const maxStatic = len("access-control-allow-origin")

type staticName struct {
	name  string
	index byte
}

func byLength(names map[string]byte) (t [maxStatic + 1][]staticName) {
	for name, i := range names {
		t[len(name)] = append(t[len(name)], staticName{name, i})
	}
	return t
}

// staticIndex is the index of a name in lower case; 0: the static table does not have it.
func staticIndex(name []byte) byte {
	if len(name) <= maxStatic {
		for _, s := range staticNames[len(name)] {
			if string(name) == s.name {
				return s.index
			}
		}
	}
	return 0
}

const (
	indexStatus        = 8
	indexContentLength = 28
)

// unsent are the fields that never go into a response: HTTP/2 has none of connection and framing (RFC 9113 §8.2.2).
var unsent = exchange.SetOf(exchange.FieldConnection, exchange.FieldContentLength, exchange.FieldTransferEncoding, exchange.FieldKeepAlive,
	exchange.FieldUpgrade, exchange.FieldProxyConnection, exchange.FieldTE, exchange.FieldTrailer, exchange.FieldHTTP2Settings)

// Unsent reports whether a field never goes into a response, of HTTP/3 neither (RFC 9114 §4.2).
func Unsent(id exchange.FieldID) bool { return unsent.Has(id) }

// appendStatus appends :status.
func appendStatus(b []byte, status int) []byte {
	switch status {
	case 200:
		return append(b, 0x80|8)
	case 204:
		return append(b, 0x80|9)
	case 206:
		return append(b, 0x80|10)
	case 304:
		return append(b, 0x80|11)
	case 400:
		return append(b, 0x80|12)
	case 404:
		return append(b, 0x80|13)
	case 500:
		return append(b, 0x80|14)
	}
	return strconv.AppendInt(append(b, indexStatus, 3), int64(status), 10)
}

// appendLength appends content-length.
func appendLength(b []byte, n int64) []byte {
	var digits [20]byte
	return appendString(appendIndex(b, indexContentLength), strconv.AppendInt(digits[:0], n, 10))
}

// appendFields appends fields, names in lower case.
func appendFields(b []byte, f *exchange.Fields) []byte {
	for name, value := range f.All() {
		if !unsent.Has(exchange.KnownField(name)) {
			b = appendField(b, name, value)
		}
	}
	return b
}

func appendField(b, name, value []byte) []byte {
	at := len(b)
	b = appendInt(append(b, 0), len(name), 0x7f)
	text := len(b)
	b = append(b, name...)
	for i := text; i < len(b); i++ {
		if c := b[i]; 'A' <= c && c <= 'Z' {
			b[i] = c | 0x20
		}
	}
	if i := staticIndex(b[text:]); i != 0 {
		b = appendIndex(b[:at], i)
	}
	return appendString(b, value)
}

// appendIndex appends the begin of a literal whose name stands in the static table.
func appendIndex(b []byte, i byte) []byte {
	if i < 15 {
		return append(b, i)
	}
	return append(b, 15, i-15)
}

func appendString(b, s []byte) []byte { return append(appendInt(b, len(s), 0x7f), s...) }

// appendInt appends a number with a prefix of the bits of mask (RFC 7541 §5.1).
func appendInt(b []byte, n, mask int) []byte {
	if n < mask {
		return append(b, byte(n))
	}
	b = append(b, byte(mask))
	for n -= mask; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}
