//go:build !linux

package proxy_test

import (
	"net"

	"github.com/sluice-proxy/sluice/internal/conn"
)

func rawOf(net.Conn) (conn.Conn, bool) { return nil, false }
