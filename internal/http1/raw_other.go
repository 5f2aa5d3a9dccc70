//go:build !linux

package http1

import (
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// raw does not exist here: every connection takes the plain path.
type raw = *noRaw

type noRaw struct{ conn.Conn }

func (*noRaw) Loop(func(int) bool) error { return nil }

func (*noRaw) WriteStall2(a, b []byte, stall time.Duration) error { return nil }

func rawOf(conn.Conn) raw { return nil }

func (c *serverConn) step(int) bool { return true }

func (c *serverConn) tryRead([]byte) int { return 0 }

func (c *serverConn) readBodyRaw() (int, error) { return 0, nil }
