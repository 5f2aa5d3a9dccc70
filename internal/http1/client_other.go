//go:build !linux

package http1

func (c *ClientConn) clientStep(int) bool { return true }

// nudge has nothing to do: every read waits by itself here.
func (c *ClientConn) nudge() {}
