package store

// Keep sets how many events are kept.
func (s *SQLite) Keep(events int64) { s.keep = events }
