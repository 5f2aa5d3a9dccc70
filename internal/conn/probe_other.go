//go:build !linux

package conn

// probeSet does nothing where the kernel has no POLLRDHUP: departures are then seen at the next write.
type probeSet struct{}

func (*probeSet) reset()         {}
func (*probeSet) add(int, Timed) {}
func (*probeSet) poll()          {}

// closedByPeer cannot tell.
func closedByPeer(int) bool { return false }

// Arrived cannot tell.
func Arrived(int) (arrived, known bool) { return false, false }
