//go:build !linux

package conn

import (
	"net"
	"time"
)

var longAgo = time.Unix(1, 0)

// copyRaw is of use where there are raw sockets.
func (r *relay) copyRaw(Conn, Conn) (int64, bool) { return 0, false }

// watch is of use where an end of stream can be missed.
func (r *relay) watch() func() { return func() {} }

// Dialed gives a dialed connection an Info.
func Dialed(c net.Conn) Conn {
	if known, ok := c.(Conn); ok {
		return known
	}
	return NewPlain(c, Info{})
}
