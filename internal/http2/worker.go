package http2

// worker is a goroutine that serves one stream after another: what its stack has grown to need not be grown anew for each.
type worker struct {
	c    *serverConn
	next chan *stream // nil ends it
}

// maxIdle bounds the workers of a connection that wait for a stream.
const maxIdle = 32

// work has a worker serve the stream. The lock is held.
func (c *serverConn) work(st *stream) {
	if n := len(c.idle); n > 0 {
		w := c.idle[n-1]
		c.idle = c.idle[:n-1]
		w.next <- st
		return
	}
	w := &worker{c: c, next: make(chan *stream, 1)}
	c.running.Add(1)
	go w.run(st)
}

func (w *worker) run(st *stream) {
	defer w.c.running.Done()
	for ; st != nil; st = <-w.next {
		st.run()
		if !w.park() {
			return
		}
	}
}

// park makes the worker wait for the next stream; false when it is to end.
func (w *worker) park() bool {
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || len(c.idle) == maxIdle {
		return false
	}
	c.idle = append(c.idle, w)
	return true
}

// retire ends the goroutines that wait: a connection that idles has only its reader. The lock is held.
func (c *serverConn) retire() {
	for i, w := range c.idle {
		w.next <- nil
		c.idle[i] = nil
	}
	c.idle = c.idle[:0]
	if c.parked {
		c.parked, c.writing, c.retiring = false, true, true
		signal(c.wakeWriter)
	}
}
