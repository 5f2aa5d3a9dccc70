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

// fastest takes a dialed connection over in its fastest form.
func fastest(nc net.Conn) Conn { return ordinary(nc) }
