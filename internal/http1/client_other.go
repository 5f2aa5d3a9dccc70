//go:build !linux

package http1

import (
	"net"

	"github.com/sluice-proxy/sluice/internal/conn"
)

func (c *ClientConn) clientStep(int) bool { return true }

// quiet cannot be told here without reading, except of in-memory connections.
func (c *ClientConn) quiet() bool {
	q, ok := c.c.(interface{ Quiet() bool })
	return !ok || q.Quiet()
}

func wrapDialed(nc net.Conn) conn.Conn { return conn.NewPlain(nc, conn.Info{}) }
