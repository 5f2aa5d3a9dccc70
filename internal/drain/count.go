package drain

import (
	"context"
	"sync"
	"sync/atomic"
)

// Count counts things under way. Unlike a sync.WaitGroup it may rise while somebody waits, its value can be read, and
// waiting ends with a context. Adding and leaving are one atomic operation each. The zero value is ready.
type Count struct {
	n    atomic.Int64
	mu   sync.Mutex // guards zero
	zero chan struct{}
}

// Add counts one more and returns the new number.
func (c *Count) Add() int64 { return c.n.Add(1) }

// Done counts one less and returns the new number.
func (c *Count) Done() int64 {
	n := c.n.Add(-1)
	if n == 0 {
		c.mu.Lock()
		if c.zero != nil {
			close(c.zero)
			c.zero = nil
		}
		c.mu.Unlock()
	}
	return n
}

// Len is the number of things under way.
func (c *Count) Len() int64 { return c.n.Load() }

// Wait returns nil once the number has been zero, or the context's error.
func (c *Count) Wait(ctx context.Context) error {
	c.mu.Lock()
	if c.n.Load() == 0 {
		c.mu.Unlock()
		return nil
	}
	if c.zero == nil {
		c.zero = make(chan struct{})
	}
	zero := c.zero
	c.mu.Unlock()
	return wait(ctx, zero)
}
