package telemetry

import (
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// AccessLog writes one line for each finished exchange. Lines wait in a bounded queue, so that an output that is
// slow, blocked, closed or full costs lines and never time: lost ones are counted. Run must be running for anything
// to be written. Safe for concurrent use.
type AccessLog struct {
	// Delay is how long an entry may wait for others to be written with; 0 is a second. It is set before Run.
	Delay time.Duration

	q              *queue
	encoders       sync.Pool
	stdout, stderr *os.File
	log            *slog.Logger
	change         sync.Mutex // one change of the target at a time

	// State of Run.
	reported uint64 // lost entries at the last look
	overflow uint64 // lost entries when losing began; meaningful while losing
	losing   bool
	deadline time.Time // when the last writes must have ended; zero until Run is to end
}

const (
	defaultDelay = time.Second
	// lastWrite is how long the end of Run, or the change to another output, waits for a write that hangs.
	lastWrite = 2 * time.Second
)

// NewAccessLog returns a log without output; see Prepare. stdout and stderr stand for the outputs of these names;
// log gets a line when writing begins to fail and when it works again.
func NewAccessLog(stdout, stderr *os.File, log *slog.Logger) *AccessLog {
	return &AccessLog{
		q: newQueue(), stdout: stdout, stderr: stderr, log: log,
		encoders: sync.Pool{New: func() any { return &encoder{buf: make([]byte, 0, 1024)} }},
	}
}

// Log takes the entry of a finished exchange. It does not block and keeps nothing of x.
func (l *AccessLog) Log(x *exchange.Exchange) {
	t := l.q.current.Load()
	if t == nil {
		return
	}
	e := l.encoders.Get().(*encoder)
	for t != nil {
		if t.format == "common" {
			e.common(x)
		} else {
			e.json(x)
		}
		if l.q.add(e.buf, t) {
			break
		}
		t = l.q.current.Load() // the configuration changed meanwhile
	}
	l.encoders.Put(e)
}

// Dropped is the number of lost entries.
func (l *AccessLog) Dropped() uint64 { return l.q.lost.Load() }

// LogChange is a prepared change of the access log. Exactly one of Commit and Abort must be called.
type LogChange struct {
	log    *AccessLog
	next   *target
	opened *output // by Prepare; nil none
}

// Prepare opens the output that cfg names and changes nothing yet. Changes must not overlap.
func (l *AccessLog) Prepare(cfg config.Observability) (*LogChange, error) {
	c := &LogChange{log: l}
	if !cfg.AccessLog {
		return c, nil
	}
	if t := l.q.current.Load(); t != nil && t.out.name == cfg.Log.Output {
		c.next = &target{cfg.Log.Format, t.out}
		return c, nil
	}
	out, err := openOutput(cfg.Log.Output, l.stdout, l.stderr)
	if err != nil {
		return nil, err
	}
	c.opened, c.next = out, &target{cfg.Log.Format, out}
	return c, nil
}

// Commit makes the change. Entries taken before are still written, to where they were meant to go.
func (c *LogChange) Commit() {
	c.log.change.Lock()
	defer c.log.change.Unlock()
	if c.opened == nil && c.next != nil {
		if t := c.log.q.current.Load(); t != nil && t.out.name == c.next.out.name {
			c.next = &target{c.next.format, t.out} // reopened since
		}
	}
	c.log.q.swap(c.next)
}

// Abort closes what Prepare has opened.
func (c *LogChange) Abort() {
	if c.opened != nil {
		_ = c.opened.close()
	}
}

// Reconfigure is Prepare and Commit.
func (l *AccessLog) Reconfigure(cfg config.Observability) error {
	c, err := l.Prepare(cfg)
	if err != nil {
		return err
	}
	c.Commit()
	return nil
}

// Reopen opens the output anew when it is a file, for log rotation: entries taken so far go to the old file, later
// ones to the one that has its name now. When that fails the old one stays.
func (l *AccessLog) Reopen() error {
	l.change.Lock()
	defer l.change.Unlock()
	t := l.q.current.Load()
	if t == nil || t.out.standard() {
		return nil
	}
	out, err := openOutput(t.out.name, l.stdout, l.stderr)
	if err != nil {
		return err
	}
	l.q.swap(&target{t.format, out})
	return nil
}
