package telemetry

import (
	"cmp"
	"context"
	"time"
)

// Run writes queued entries until ctx ends, then what is left, and closes the output. Entries are written in blocks
// of up to 256 KiB, at the latest Delay after they came. Call it once; the log takes nothing after it.
func (l *AccessLog) Run(ctx context.Context) {
	tick := time.NewTicker(cmp.Or(l.Delay, defaultDelay))
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-l.q.wake:
			l.flush(ctx, tick.C, false)
		case <-tick.C:
			l.flush(ctx, tick.C, true)
			l.report()
		}
	}
	if l.deadline.IsZero() {
		l.deadline = time.Now().Add(lastWrite)
	}
	l.change.Lock()
	l.q.swap(nil)
	l.change.Unlock()
	l.flush(ctx, tick.C, true)
	l.report()
}

// flush writes all full chunks, with all set also the open one.
func (l *AccessLog) flush(ctx context.Context, tick <-chan time.Time, all bool) {
	for c := l.q.take(all); c != nil; c = l.q.take(all) {
		if c.buf == nil {
			l.finish(c.out)
			continue
		}
		l.write(ctx, tick, c)
	}
}

// finish closes an output that nothing will be written to any more.
func (l *AccessLog) finish(o *output) {
	if !o.abandoned {
		if err := o.close(); err != nil {
			l.log.Warn("closing the access log output", "output", o.name, "error", err)
		}
	}
}

// write writes one chunk. The write has a goroutine of its own, because a write to a descriptor in blocking mode
// cannot be interrupted: if it hangs when the log ends or moves to another output, it is left behind with its chunk.
func (l *AccessLog) write(ctx context.Context, tick <-chan time.Time, c *chunk) {
	o := c.out
	if o.abandoned {
		l.q.lost.Add(uint64(c.entries))
		l.q.written(c)
		return
	}
	result := make(chan attempt, 1)
	torn := o.torn
	go func() { result <- o.write(c.buf, torn) }()
	// Never leaves running but a hanging write: every way out of the loop has waited for it, or given the file up.
	var patience <-chan time.Time
	done := ctx.Done()
	for {
		select {
		case r := <-result:
			l.account(c, r)
			return
		case <-tick:
			l.report()
			if patience == nil && o.retired.Load() {
				patience = time.After(lastWrite)
			}
		case <-done:
			if l.deadline.IsZero() {
				l.deadline = time.Now().Add(lastWrite)
			}
			done, patience = nil, time.After(time.Until(l.deadline))
		case <-patience:
			o.abandoned = true
			if o.interrupt() {
				l.account(c, <-result)
				_ = o.close()
			} else {
				l.q.abandoned(c)
			}
			l.log.Warn("access log output hangs and is given up", "output", o.name)
			return
		}
	}
}

// account notes the result of a write, and logs when it is not what the last one was.
func (l *AccessLog) account(c *chunk, r attempt) {
	o := c.out
	o.torn = r.torn
	l.q.lost.Add(uint64(c.entries - min(r.written, c.entries)))
	l.q.written(c)
	switch {
	case r.err != nil && !o.failing:
		o.failing = true
		l.log.Warn("access log cannot be written, entries are lost", "output", o.name, "error", r.err)
	case r.err == nil && o.failing:
		o.failing = false
		l.log.Info("access log is written again", "output", o.name, "lost_total", l.q.lost.Load())
	}
}

// report logs when the queue begins to overflow, and when it has stopped to.
func (l *AccessLog) report() {
	lost := l.q.lost.Load()
	full := l.q.congested()
	switch {
	case !l.losing && lost > l.reported && full:
		l.losing, l.overflow = true, l.reported
		l.log.Warn("access log output is too slow, oldest entries are lost")
	case l.losing && !full:
		l.losing = false
		l.log.Info("access log output keeps up again", "lost", lost-l.overflow)
	}
	l.reported = lost
}
