package entrypoint

import "io"

// HandshakeTime is how long a client that is connecting may hold the removal of an address.
const HandshakeTime = handshakeTime

// ParseAddress gives the key and what would be bound.
func ParseAddress(text string) (key, network, literal string, err error) {
	a, err := parseAddress(text, "e")
	if err != nil {
		return "", "", "", err
	}
	return a.key, a.network(), a.literal(), nil
}

// ReadHanded reads a table of sessions and returns how many there are.
func ReadHanded(r io.Reader) (int, error) {
	all, err := readHanded(r)
	n := 0
	for _, places := range all {
		n += len(places)
	}
	return n, err
}

// DrainLoop drains one of the sockets of an entrypoint of datagrams.
func DrainLoop(s *Set, name string, i int) {
	s.mu.Lock()
	b := s.table[name]
	s.mu.Unlock()
	b.sock.acceptors[i].(interface{ drain(b *binding, ceded bool) }).drain(b, false)
}
