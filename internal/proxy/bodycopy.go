package proxy

import (
	"sync"
	"sync/atomic"

	"github.com/sluice-proxy/sluice/internal/service"
)

// bodyCopy is what has been sent of a body to a backend of HTTP/2, which may still say that it did not begin with the
// request: the body then goes on to another connection, from its beginning.
type bodyCopy struct {
	dropped atomic.Bool // the backend has begun

	mu    sync.Mutex // guards the fields below; held while body bytes are sent
	moved sync.Cond
	bytes []byte
	gone  bool             // there is no whole copy any more
	ended bool             // all of the body is here
	over  bool             // nobody wants the body any more
	to    service.Upstream // where the body goes; nil: that is not decided yet
}

// maxBodyCopy bounds a copy: a longer body is sent once.
const maxBodyCopy = 256 << 10

func newBodyCopy(to service.Upstream) *bodyCopy {
	c := &bodyCopy{to: to}
	c.moved.L = &c.mu
	return c
}

// keep takes bytes in, or the end of the body if there are none.
func (c *bodyCopy) keep(p []byte) {
	c.ended = c.ended || p == nil
	if c.forget(len(c.bytes)+len(p) > maxBodyCopy); !c.gone {
		c.bytes = append(c.bytes, p...)
	}
}

// forget gives the copy up if there is a reason, or nobody needs it. The lock is held.
func (c *bodyCopy) forget(reason bool) {
	if c.gone = c.gone || reason || c.dropped.Load(); c.gone {
		c.bytes = nil
	}
}

// drop gives the copy up, since the backend has begun: answers may last for hours. It does not wait for who sends.
func (c *bodyCopy) drop() {
	c.dropped.Store(true)
	if c.mu.TryLock() {
		c.forget(false)
		c.mu.Unlock()
	}
}

// pass is forward.pass. What it was given is sent when it returns true, be it by resume.
func (c *bodyCopy) pass(f *forward, p []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.forget(false)
	c.keep(p)
	if c.to != nil {
		if f.passTo(c.to, p) {
			return true
		}
		if c.gone {
			return false
		}
		c.to = nil
	}
	for c.to == nil && !c.over {
		c.moved.Wait()
	}
	return !c.over
}

// park keeps the body from the connection that it went to. False: it cannot be sent again.
func (c *bodyCopy) park(up service.Upstream) bool {
	up.Interrupt() // or the lock might be held for long
	c.mu.Lock()
	defer c.mu.Unlock()
	c.to = nil
	return !c.gone
}

// resume sends the body from its beginning to where the request goes now.
func (c *bodyCopy) resume(f *forward) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.to = f.up
	f.up.BeginBody(f.x.Request.ContentLength)
	if ok := len(c.bytes) == 0 || f.passTo(f.up, c.bytes); ok && c.ended {
		f.passTo(f.up, nil)
	}
	c.moved.Broadcast()
}

// close lets the pump go.
func (c *bodyCopy) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.moved.Broadcast()
}
