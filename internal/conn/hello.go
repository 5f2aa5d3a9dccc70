package conn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// MaxHello is the most that PeekHello need be allowed to read: crypto/tls takes no longer ClientHello either.
const MaxHello = 64 << 10

// Why there is no ClientHello.
var (
	ErrNotTLS        = errors.New("what the client sends is no TLS handshake")
	ErrBadHello      = errors.New("malformed ClientHello")
	ErrHelloTooLarge = errors.New("ClientHello too large")
)

// Hello is what a client tells of itself before TLS begins.
type Hello struct {
	// ServerName is the name asked for, as written; "" none. Behind ECH it is the outer one.
	ServerName string
	// ECH is set when the real name may be encrypted (RFC 9849). Clients also pretend to.
	ECH bool
}

// PeekHello reads until it has a ClientHello, over any number of reads and records, or knows that none will come: at most
// limit bytes, at most for timeout. The connection that it returns reads those bytes again; it is usable whatever the
// error. Besides the errors above that is os.ErrDeadlineExceeded when the time is over, or what reading failed with. The
// read deadline is cleared.
func PeekHello(c Conn, limit int, timeout time.Duration) (Hello, Conn, error) {
	_ = c.SetReadDeadline(time.Now().Add(timeout)) // a closed connection fails to be read
	var s helloScan
	for {
		h, err := s.next()
		if err != errMore {
			_ = c.SetReadDeadline(time.Time{})
			return h, WithPrefix(c, s.raw), err
		}
		n, err := s.read(c, limit)
		if n == 0 && err != nil {
			_ = c.SetReadDeadline(time.Time{})
			return Hello{}, WithPrefix(c, s.raw), err
		}
	}
}

// errMore asks for more bytes.
var errMore = errors.New("more bytes needed")

// Sizes of TLS, RFC 8446 sections 4 and 5.1.
const (
	recordHeader    = 5
	handshakeHeader = 4
	maxPlaintext    = 1 << 14
	typeHandshake   = 22
	typeClientHello = 1
	extServerName   = 0
	extECH          = 0xfe0d
)

// firstHello is the room for the usual ClientHello, which comes in one piece.
const firstHello = 2 << 10

// helloScan collects a ClientHello.
type helloScan struct {
	raw []byte // as read
	at  int    // where the record begins that is not complete yet
	msg []byte // handshake bytes of the records before; a view of raw while there was one record
	own bool   // msg is a copy
}

// read reads once.
func (s *helloScan) read(c Conn, limit int) (int, error) {
	if len(s.raw) >= limit {
		return 0, ErrHelloTooLarge
	}
	if len(s.raw) == cap(s.raw) {
		grown := make([]byte, len(s.raw), min(max(firstHello, 4*cap(s.raw)), limit))
		copy(grown, s.raw)
		s.raw = grown
	}
	n, err := c.Read(s.raw[len(s.raw):cap(s.raw)])
	s.raw = s.raw[:len(s.raw)+n]
	return n, err
}

// next looks at what has been read since; errMore when that does not decide.
func (s *helloScan) next() (Hello, error) {
	for {
		if body, ok, err := s.message(); ok || err != nil {
			if err != nil {
				return Hello{}, err
			}
			return parseHello(body)
		}
		more, err := s.record()
		if err != nil {
			return Hello{}, err
		}
		if !more {
			return Hello{}, errMore
		}
	}
}

// record takes one complete record; false: it is not here yet. A wrong beginning is told by its first wrong byte, so that
// no other protocol waits for an answer.
func (s *helloScan) record() (bool, error) {
	head := s.raw[s.at:]
	no := ErrNotTLS
	if s.at > 0 {
		no = ErrBadHello
	}
	switch {
	case len(head) > 0 && head[0] != typeHandshake, len(head) > 1 && head[1] != 3:
		return false, no
	case len(head) < recordHeader:
		return false, nil
	}
	n := int(binary.BigEndian.Uint16(head[3:]))
	if n == 0 || n > maxPlaintext {
		return false, no
	}
	if s.at == 0 && len(head) > recordHeader && head[recordHeader] != typeClientHello {
		return false, ErrNotTLS
	}
	if len(head) < recordHeader+n {
		return false, nil
	}
	body := head[recordHeader : recordHeader+n]
	switch {
	case s.msg == nil:
		s.msg = body[:n:n]
	case !s.own:
		s.msg, s.own = append(make([]byte, 0, len(s.msg)+n), s.msg...), true
		fallthrough
	default:
		s.msg = append(s.msg, body...)
	}
	s.at += recordHeader + n
	return true, nil
}

// message is the body of the ClientHello, once it is complete.
func (s *helloScan) message() ([]byte, bool, error) {
	if len(s.msg) == 0 {
		return nil, false, nil
	}
	if s.msg[0] != typeClientHello {
		return nil, false, ErrNotTLS
	}
	if len(s.msg) < handshakeHeader {
		return nil, false, nil
	}
	n := int(s.msg[1])<<16 | int(s.msg[2])<<8 | int(s.msg[3])
	if n > MaxHello {
		return nil, false, ErrHelloTooLarge
	}
	if len(s.msg) < handshakeHeader+n {
		return nil, false, nil
	}
	return s.msg[handshakeHeader : handshakeHeader+n], true, nil
}

// fieldReader takes the fields of a message apart. After a field that is not there it is broken and gives nothing.
type fieldReader struct {
	b      []byte
	broken bool
}

// take returns the next n bytes.
func (r *fieldReader) take(n int) []byte {
	if n > len(r.b) {
		r.b, r.broken = nil, true
		return nil
	}
	p := r.b[:n:n]
	r.b = r.b[n:]
	return p
}

// number is a big-endian number of size bytes.
func (r *fieldReader) number(size int) int {
	n := 0
	for _, c := range r.take(size) {
		n = n<<8 | int(c)
	}
	return n
}

// vector is a field that begins with its length in size bytes.
func (r *fieldReader) vector(size int) []byte { return r.take(r.number(size)) }

// maxExtensions is how many extensions a ClientHello may have: several times of what any client sends.
const maxExtensions = 256

// parseHello reads the body of a ClientHello, RFC 8446 section 4.1.2, in place.
func parseHello(body []byte) (Hello, error) {
	r := fieldReader{b: body}
	r.take(2 + 32) // legacy_version, random
	session, suites, compression := r.vector(1), r.vector(2), r.vector(1)
	if r.broken || len(session) > 32 || len(suites) == 0 || len(suites)%2 != 0 || len(compression) == 0 {
		return Hello{}, ErrBadHello
	}
	var h Hello
	if len(r.b) == 0 { // TLS 1.2 and before know hellos without extensions
		return h, nil
	}
	extensions := fieldReader{b: r.vector(2)}
	if r.broken || len(r.b) > 0 {
		return Hello{}, ErrBadHello
	}
	var seen [maxExtensions]uint16
	for n := 0; len(extensions.b) > 0; n++ {
		kind, data := uint16(extensions.number(2)), extensions.vector(2)
		if extensions.broken || n == maxExtensions {
			return Hello{}, ErrBadHello
		}
		for _, other := range seen[:n] {
			if other == kind {
				return Hello{}, fmt.Errorf("%w: extension %d repeated", ErrBadHello, kind)
			}
		}
		seen[n] = kind
		switch kind {
		case extServerName:
			name, ok := serverName(data)
			if !ok {
				return Hello{}, fmt.Errorf("%w: server name", ErrBadHello)
			}
			h.ServerName = name
		case extECH:
			h.ECH = true
		}
	}
	return h, nil
}

// serverName reads the extension of RFC 6066 section 3: one host name, without a dot at its end, and possibly names of
// kinds that nobody has defined.
func serverName(data []byte) (string, bool) {
	r := fieldReader{b: data}
	list := fieldReader{b: r.vector(2)}
	if r.broken || len(r.b) > 0 || len(list.b) == 0 {
		return "", false
	}
	host := ""
	for len(list.b) > 0 {
		kind, name := list.number(1), list.vector(2)
		if list.broken || len(name) == 0 || kind == 0 && host != "" {
			return "", false
		}
		if kind == 0 {
			host = string(name)
		}
	}
	return host, host == "" || host[len(host)-1] != '.'
}
