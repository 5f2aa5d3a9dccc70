package http2_test

import (
	"net"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// kernelConn takes an accepted connection over the way the accept path does.
func kernelConn(c net.Conn) conn.Conn {
	if r, ok := conn.RawOf(c); ok {
		return r
	}
	return plainConn(c)
}
