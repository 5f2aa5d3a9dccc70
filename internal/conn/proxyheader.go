package conn

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/pires/go-proxyproto"
)

// ErrProxyHeader is a connection that does not begin with a PROXY protocol header that can be believed.
var ErrProxyHeader = errors.New("bad PROXY protocol header")

// Sizes of the PROXY protocol, https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt.
const (
	proxyStart   = 12      // what tells the versions apart; no header is shorter
	proxyHead2   = 16      // of version 2, before its addresses
	proxyMax1    = 107     // of version 1, with its line end
	proxyMax2    = 4 << 10 // addresses and extensions of version 2
	shortestTCP4 = 32      // a whole line of version 1 with IPv4 addresses
	shortestTCP6 = 22
)

// ReadProxyHeader reads the PROXY protocol header, version 1 or 2, that c must begin with, within timeout, and puts into
// c's Info whom the peer speaks for. Of what follows nothing is read. A peer that speaks for itself (LOCAL, UNKNOWN)
// stays the remote end. Whom to believe is the caller's affair. The read deadline is cleared.
func ReadProxyHeader(c Conn, timeout time.Duration) error {
	_ = c.SetReadDeadline(time.Now().Add(timeout)) // a closed connection fails to be read
	b, err := proxyHeader(c)
	_ = c.SetReadDeadline(time.Time{})
	if err != nil {
		return err
	}
	h, err := proxyproto.Read(bufio.NewReaderSize(bytes.NewReader(b), max(len(b), 16)))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProxyHeader, err)
	}
	if h.Command.IsLocal() {
		return nil
	}
	src, dst, ok := h.TCPAddrs()
	switch {
	case ok:
	case h.TransportProtocol.IsUnix() && h.TransportProtocol.IsStream():
		return nil // a client without an address
	default:
		return fmt.Errorf("%w: it is about no stream", ErrProxyHeader)
	}
	info := c.Info()
	info.Via = info.Remote
	info.Remote, info.Local = addrPort(src), addrPort(dst)
	return nil
}

// proxyHeader reads the bytes of a header and not one more, so that the connection stays what it is.
func proxyHeader(c Conn) ([]byte, error) {
	b := make([]byte, proxyStart, 64)
	if _, err := io.ReadFull(c, b); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProxyHeader, err)
	}
	switch {
	case bytes.Equal(b, proxyproto.SIGV2):
		return proxyHeader2(c, b)
	case bytes.HasPrefix(b, proxyproto.SIGV1):
		return proxyHeader1(c, b)
	}
	return nil, fmt.Errorf("%w: something else was sent", ErrProxyHeader)
}

// more reads b up to n bytes.
func more(c Conn, b []byte, n int) ([]byte, error) {
	have := len(b)
	if n <= have {
		return b, nil
	}
	b = append(b, make([]byte, n-have)...)
	if _, err := io.ReadFull(c, b[have:]); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProxyHeader, err)
	}
	return b, nil
}

// proxyHeader1 reads a line: at once what any has, then byte by byte.
func proxyHeader1(c Conn, b []byte) ([]byte, error) {
	least := 0
	switch {
	case bytes.HasPrefix(b, []byte("PROXY TCP4 ")):
		least = shortestTCP4
	case bytes.HasPrefix(b, []byte("PROXY TCP6 ")):
		least = shortestTCP6
	}
	b, err := more(c, b, least)
	for err == nil && b[len(b)-1] != '\n' {
		if len(b) == proxyMax1 {
			return nil, fmt.Errorf("%w: line too long", ErrProxyHeader)
		}
		b, err = more(c, b, len(b)+1)
	}
	return b, err
}

func proxyHeader2(c Conn, b []byte) ([]byte, error) {
	b, err := more(c, b, proxyHead2)
	if err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(b[proxyHead2-2:]))
	if n > proxyMax2 {
		return nil, fmt.Errorf("%w: %d bytes long", ErrProxyHeader, n)
	}
	return more(c, b, proxyHead2+n)
}

// ProxyHeader is the PROXY protocol header, version 1 or 2, that tells a backend who the client of a connection is. Ends
// that have no IP address become UNKNOWN, or LOCAL.
func ProxyHeader(version int, info *Info) ([]byte, error) {
	return proxyproto.HeaderProxyFromAddrs(byte(version), tcpAddr(info.Remote), tcpAddr(info.Local)).Format()
}

// tcpAddr is an address as the net package has it; nil when it is none.
func tcpAddr(a netip.AddrPort) net.Addr {
	if !a.IsValid() {
		return nil
	}
	return net.TCPAddrFromAddrPort(a)
}
