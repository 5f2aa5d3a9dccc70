//go:build !linux

package http1

import (
	"net"

	"github.com/sluice-proxy/sluice/internal/conn"
)

func (c *ClientConn) clientStep(int) bool { return true }

func wrapDialed(nc net.Conn) conn.Conn { return ordinary(nc) }

// nudge has nothing to do: every read waits by itself here.
func (c *ClientConn) nudge() {}
