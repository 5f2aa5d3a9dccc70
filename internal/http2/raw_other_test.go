//go:build !linux

package http2_test

import (
	"net"

	"github.com/sluice-proxy/sluice/internal/conn"
)

func kernelConn(c net.Conn) conn.Conn { return plainConn(c) }
