package http1

import (
	"bytes"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Bounds of the chunked coding beyond the data itself.
const (
	maxChunkExt     = 4 << 10 // bytes of extensions in one message; they are dropped (RFC 9112 §7.1.1)
	maxTrailerBytes = 16 << 10
	maxTrailers     = 64
	maxSizeDigits   = 15
)

var crlf = []byte("\r\n")

var errChunk error = exchange.Fault("malformed chunked body")

type chunkState uint8

const (
	chunkSize chunkState = iota
	chunkExt
	chunkSizeLF
	chunkData
	chunkDataCR
	chunkDataLF
	chunkTrailer
	chunkDone
)

// chunked follows the chunked transfer coding (RFC 9112 §7.1), strictly: hexadecimal sizes, CRLF, bounded extensions,
// a bounded trailer section that it parses. It allocates only for trailers.
type chunked struct {
	state  chunkState
	rest   int64 // data bytes left in this chunk
	digits int
	ext    int
	tail   []byte // trailer section so far
}

func (c *chunked) reset() { *c = chunked{tail: c.tail[:0]} }

// next looks at b and returns how many bytes it used and which of them are body data; a call uses bytes up to the end
// of one data run. done is set with the end of the message.
func (c *chunked) next(b []byte) (used int, data []byte, done bool, err error) {
	for used < len(b) {
		if c.state == chunkData {
			n := min(int64(len(b)-used), c.rest)
			data = b[used : used+int(n)]
			c.rest -= n
			if c.rest == 0 {
				c.state = chunkDataCR
			}
			return used + int(n), data, false, nil
		}
		if c.state == chunkTrailer {
			n, done, err := c.trailer(b[used:])
			return used + n, nil, done, err
		}
		if err = c.frame(b[used]); err != nil {
			return used, nil, false, err
		}
		used++
	}
	return used, nil, false, nil
}

// frame takes one byte of framing.
func (c *chunked) frame(ch byte) error {
	switch c.state {
	case chunkSize:
		return c.size(ch)
	case chunkExt:
		c.ext++
		switch {
		case ch == '\r':
			c.state = chunkSizeLF
		case c.ext > maxChunkExt || !exchange.ValueByte(ch):
			return errChunk
		}
	case chunkSizeLF:
		if ch != '\n' {
			return errChunk
		}
		c.digits = 0
		c.state = chunkData
		if c.rest == 0 {
			c.state = chunkTrailer
		}
	case chunkDataCR:
		if ch != '\r' {
			return errChunk
		}
		c.state = chunkDataLF
	case chunkDataLF:
		if ch != '\n' {
			return errChunk
		}
		c.state = chunkSize
	}
	return nil
}

func (c *chunked) size(ch byte) error {
	var d byte
	switch {
	case '0' <= ch && ch <= '9':
		d = ch - '0'
	case 'a' <= ch && ch <= 'f':
		d = ch - 'a' + 10
	case 'A' <= ch && ch <= 'F':
		d = ch - 'A' + 10
	case c.digits > 0 && ch == '\r':
		c.state = chunkSizeLF
		return nil
	case c.digits > 0 && ch == ';':
		c.state = chunkExt
		return nil
	default:
		return errChunk
	}
	c.rest = c.rest<<4 | int64(d)
	if c.digits++; c.digits > maxSizeDigits {
		return errChunk
	}
	return nil
}

// trailer collects the trailer section up to its closing empty line.
func (c *chunked) trailer(b []byte) (used int, done bool, err error) {
	if len(c.tail) == 0 && len(b) >= 2 && b[0] == '\r' && b[1] == '\n' {
		c.state = chunkDone
		return 2, true, nil
	}
	for used < len(b) {
		i := bytes.IndexByte(b[used:], '\n')
		end := len(b)
		if i >= 0 {
			end = used + i + 1
		}
		if len(c.tail)+end-used > maxTrailerBytes {
			return used, false, errChunk
		}
		c.tail = append(c.tail, b[used:end]...)
		used = end
		if i >= 0 && !bytes.HasSuffix(c.tail, crlf) { // at once, rather than wait for an end that does not come
			return used, false, errChunk
		}
		if i >= 0 && (len(c.tail) == 2 && c.tail[0] == '\r' || bytes.HasSuffix(c.tail, []byte("\n\r\n"))) {
			c.state = chunkDone
			return used, true, nil
		}
	}
	return used, false, nil
}

// trailers parses the collected trailer section into f. Fields that frame, route or authenticate are refused
// (RFC 9110 §6.5.1).
func (c *chunked) trailers(f *exchange.Fields) error {
	f.Reset(nil)
	if len(c.tail) <= 2 {
		return nil
	}
	block := c.tail
	f.Reset(block)
	for at, n := 0, 0; at < len(block); n++ {
		var l exchange.RawLine
		next, why := parseLine(block, at, &l)
		if why != "" || n > maxTrailers {
			return errChunk
		}
		if l.End == 0 {
			if next != len(block) {
				return errChunk
			}
			return nil
		}
		if forbiddenTrailer.Has(l.ID) && l.ID != exchange.FieldOther {
			return errChunk
		}
		f.AppendLine(l)
		at = next
	}
	return errChunk
}

var forbiddenTrailer = exchange.SetOf(
	exchange.FieldHost, exchange.FieldConnection, exchange.FieldContentLength, exchange.FieldTransferEncoding, exchange.FieldTE,
	exchange.FieldTrailer, exchange.FieldUpgrade, exchange.FieldKeepAlive, exchange.FieldProxyConnection, exchange.FieldProxyAuthenticate,
	exchange.FieldProxyAuthorization, exchange.FieldExpect, exchange.FieldForwarded, exchange.FieldXForwardedFor, exchange.FieldXForwardedHost,
	exchange.FieldXForwardedProto, exchange.FieldXForwardedPort, exchange.FieldXForwardedOther, exchange.FieldXRealIP, exchange.FieldContentType, exchange.FieldAuthorization,
	exchange.FieldCookie, exchange.FieldXRequestID, exchange.FieldHTTP2Settings, exchange.FieldUnderscored,
)

// raw follows the framing in b, which it may compact in place, and returns what can be passed on unchanged: everything
// but chunk extensions and the trailer section. used is how much of b belonged to the message.
func (c *chunked) raw(b []byte) (r exchange.RawRun, used int, err error) {
	w := 0 // b[:w] is what goes on
	for i := 0; i < len(b); {
		switch c.state {
		case chunkData:
			n := int(min(int64(len(b)-i), c.rest))
			if w != i {
				copy(b[w:], b[i:i+n])
			}
			w, i = w+n, i+n
			r.Payload += n
			if c.rest -= int64(n); c.rest == 0 {
				c.state = chunkDataCR
			}
		case chunkTrailer:
			plain := len(c.tail) == 0
			n, done, err := c.trailer(b[i:])
			if err != nil {
				return r, i, err
			}
			if plain && done && n == 2 { // no trailers: the closing empty line goes along
				copy(b[w:], b[i:i+2])
				w += 2
				r.Closed = true
			}
			r.Bytes, r.Last = b[:w], done
			return r, i + n, nil
		default:
			if err := c.frame(b[i]); err != nil {
				return r, i, err
			}
			if c.state != chunkExt { // an extension is dropped from its semicolon to its carriage return
				b[w] = b[i]
				w++
			}
			i++
		}
	}
	r.Bytes = b[:w]
	return r, len(b), nil
}
