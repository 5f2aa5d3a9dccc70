//go:build !linux

package http1_test

import (
	"net"

	"github.com/sluice-proxy/sluice/internal/conn"
)

func rawOf(net.Conn) (conn.Conn, bool) { return nil, false }

func unread(c conn.Conn) bool {
	m, ok := c.(*conn.MemoryConn)
	return ok && !m.Quiet()
}
