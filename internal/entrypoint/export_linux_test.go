package entrypoint

// SetAccept replaces the system call that takes connections.
func (s *Set) SetAccept(f rawAccept) { s.acceptRaw = f }
