package http1_test

import (
	"net"

	"golang.org/x/sys/unix"

	"github.com/sluice-proxy/sluice/internal/conn"
)

func rawOf(c net.Conn) (conn.Conn, bool) {
	r, ok := conn.RawOf(c)
	return r, ok
}

// unread reports whether bytes wait in the server's end.
func unread(c conn.Conn) bool {
	switch c := c.(type) {
	case *conn.MemoryConn:
		return !c.Quiet()
	case interface{ FD() int }:
		n, err := unix.IoctlGetInt(c.FD(), unix.TIOCINQ)
		return err == nil && n > 0
	}
	return false
}
