package proxy_test

import (
	"net"

	"github.com/sluice-proxy/sluice/internal/conn"
)

func rawOf(c net.Conn) (conn.Conn, bool) {
	r, ok := conn.RawOf(c)
	return r, ok
}
