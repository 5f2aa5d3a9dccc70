package worker

import (
	"log/slog"
	"sync"
	"time"
)

// linesASecond bounds what strangers have us log; the counts have the rest.
const linesASecond = 10

// strangersLog is for what an actor or an unknown peer can cause as often as it likes. The zero value but for log is ready.
type strangersLog struct {
	log *slog.Logger

	mu      sync.Mutex // guards what follows
	since   time.Time
	lines   int
	dropped int
}

// warn writes a line, unless this second has had its share. The first line afterwards says how many were not written.
func (s *strangersLog) warn(message string, args ...any) {
	s.mu.Lock()
	if now := time.Now(); now.Sub(s.since) >= time.Second {
		if s.dropped > 0 {
			args = append(args, "not_logged_before", s.dropped)
		}
		s.since, s.lines, s.dropped = now, 0, 0
	}
	s.lines++
	written := s.lines <= linesASecond
	if !written {
		s.dropped++
	}
	s.mu.Unlock()
	if written {
		s.log.Warn(message, args...)
	}
}
