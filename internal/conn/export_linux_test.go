package conn

// Destination reads the address that a datagram came to.
func Destination(control []byte) [16]byte { return destination(control) }

// Control is what a Peer has the kernel told of the address to send from.
func (p *Peer) Control() []byte { return p.control[:p.used] }

// Polled reports whether the connection has joined the runtime's poller.
func (r *Raw) Polled() bool { return r.polled.Load() }
