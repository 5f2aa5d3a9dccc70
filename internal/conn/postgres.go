package conn

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// PostgreSQL clients ask for encryption in clear text before TLS begins: a message of 8 bytes, answered by one byte
// (PostgreSQL documentation, "Message Formats", SSLRequest and GSSENCRequest).
const (
	pgRequestSize = 8
	pgSSL         = 80877103
	pgGSS         = 80877104

	pgYes = 'S'
	pgNo  = 'N'
)

// pgRequest is the code of the request for encryption that b begins with. more: too little has come to tell.
func pgRequest(b []byte) (code uint32, more bool) {
	want := [pgRequestSize]byte{3: pgRequestSize, 4: pgSSL >> 24, 5: pgSSL >> 16 & 0xff, 6: pgSSL >> 8 & 0xff}
	for i := range min(len(b), pgRequestSize-1) {
		if b[i] != want[i] {
			return 0, false
		}
	}
	if len(b) < pgRequestSize {
		return 0, true
	}
	code = binary.BigEndian.Uint32(b[4:])
	if code != pgSSL && code != pgGSS {
		return 0, false
	}
	return code, false
}

// RequestTLS asks a PostgreSQL server for TLS, as its client has asked the gateway. The deadline is left as it was set.
func RequestTLS(c Conn) error {
	b := binary.BigEndian.AppendUint32([]byte{0, 0, 0, pgRequestSize}, pgSSL)
	if _, err := c.Write(b); err != nil {
		return fmt.Errorf("asking the backend for TLS: %w", err)
	}
	if _, err := io.ReadFull(c, b[:1]); err != nil {
		return fmt.Errorf("the backend's answer to the request for TLS: %w", err)
	}
	if b[0] != pgYes {
		return fmt.Errorf("the backend refuses TLS (%q)", b[0])
	}
	return nil
}

// ErrStuffed is a request for encryption with bytes behind it that its client cannot have sent, since it waits for the
// answer: somebody on the way has put them there, to be taken for the client's inside TLS (CVE-2021-23222).
var ErrStuffed = errors.New("bytes behind a request for encryption")

// AnswerTLSRequest answers the requests for encryption that may stand before a TLS handshake: no to GSSAPI, yes to TLS,
// which is told by asked. Other bytes that it has read can be read again from the connection returned, which is usable
// whatever the error. It waits for the first bytes for at most timeout, and clears the read deadline.
func AnswerTLSRequest(c Conn, timeout time.Duration) (again Conn, asked bool, err error) {
	_ = c.SetReadDeadline(time.Now().Add(timeout)) // a closed connection fails to be read
	defer func() { _ = c.SetReadDeadline(time.Time{}) }()
	b := make([]byte, 0, firstHello)
	for refused := false; ; {
		code, more := pgRequest(b)
		switch {
		case more:
			n, err := c.Read(b[len(b):cap(b)])
			if b = b[:len(b)+n]; n == 0 && err != nil {
				return WithPrefix(c, b), false, err
			}
			continue
		case code == 0 || code == pgGSS && refused:
			return WithPrefix(c, b), false, nil
		case len(b) > pgRequestSize:
			return c, false, ErrStuffed
		}
		answer := byte(pgYes)
		if code == pgGSS {
			refused, answer = true, pgNo
		}
		if _, err := c.Write([]byte{answer}); err != nil || code == pgSSL {
			return c, err == nil, err
		}
		b = b[:0]
	}
}
