//go:build !linux

package entrypoint

import (
	"context"
	"net"
	"time"
)

// keepAlive is what the raw path sets on its listening sockets.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 9}

// rawAccept is of no use where connections come from the net package.
type rawAccept func()

// bindKernel binds through the net package.
func bindKernel(s *socket, _ int, _ bool, _ rawAccept) error {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	return s.bindPlain(context.Background(), lc.Listen)
}

// handshaking is of use only to acceptors that can refuse.
func handshaking(uint16) (bool, error) { return false, nil }
