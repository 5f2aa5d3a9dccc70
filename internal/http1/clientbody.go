package http1

import (
	"fmt"
	"strconv"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// CopyBody gives the response body to sink until its end. With raw set the sink gets chunks with their framing.
// Trailers go to t before the last call.
func (c *ClientConn) CopyBody(sink exchange.BodySink, rawBody bool, t *exchange.Fields) error {
	c.sink, c.rawBody, c.trailers, c.passed = sink, rawBody, t, false
	if c.Done() {
		c.done = true
		return sink.Body(nil, true)
	}
	c.phase = stepBody
	if c.r < c.w {
		if c.bodyBytes(c.in.buf[c.r:c.w]) {
			return c.finishCopy(c.err)
		}
		if !c.passed { // less than a chunk's size line came with the head, which must not wait for the rest
			if c.err = sink.Body(nil, false); c.err != nil {
				return c.finishCopy(c.err)
			}
		}
	}
	return c.finishCopy(c.run())
}

func (c *ClientConn) finishCopy(err error) error {
	if err != nil {
		c.keep = false
	}
	return err
}

// bodyBytes passes on body bytes; true when the body has ended or failed.
func (c *ClientConn) bodyBytes(b []byte) bool {
	c.passed = c.passed || c.ends != endsChunked || c.rawBody
	switch c.ends {
	case endsLength:
		if int64(len(b)) > c.rest {
			b, c.keep = b[:c.rest], false
		}
		c.rest -= int64(len(b))
		c.done = c.rest == 0
		c.err = c.sink.Body(b, c.done)
	case endsChunked:
		c.chunkBytes(b)
	default:
		c.err = c.sink.Body(b, false)
	}
	return c.done || c.err != nil
}

func (c *ClientConn) chunkBytes(b []byte) {
	if c.rawBody {
		run, used, err := c.dec.raw(b)
		if err != nil {
			c.err = fmt.Errorf("%w: %v", exchange.ErrBadResponse, err)
			return
		}
		c.endChunks(run.Last, len(b)-used)
		if c.err == nil {
			c.err = c.sink.Raw(run)
		}
		return
	}
	for len(b) > 0 && c.err == nil && !c.done {
		used, data, done, err := c.dec.next(b)
		if err != nil {
			c.err = fmt.Errorf("%w: %v", exchange.ErrBadResponse, err)
			return
		}
		b = b[used:]
		c.endChunks(done, len(b))
		if c.err == nil && (len(data) > 0 || done) {
			c.passed = true
			c.err = c.sink.Body(data, done)
		}
	}
}

// endChunks takes the trailers at the end of a chunked body.
func (c *ClientConn) endChunks(done bool, left int) {
	if !done {
		return
	}
	c.done = true
	if left > 0 {
		c.keep = false
	}
	if err := c.dec.trailers(c.trailers); err != nil {
		c.err = fmt.Errorf("%w: trailers: %v", exchange.ErrBadResponse, err)
		return
	}
	c.trailers.StripHopByHop()
}

// BeginBody tells how a body is framed that Write sends: its length, or -1 for chunks, as the head has told.
func (c *ClientConn) BeginBody(length int64) { c.chunks = length < 0 }

// Write sends request body bytes; one other goroutine may do so while the response is read.
func (c *ClientConn) Write(p []byte) error {
	if c.chunks {
		c.chunk = strconv.AppendUint(c.chunk[:0], uint64(len(p)), 16)
		c.chunk = append(append(append(c.chunk, "\r\n"...), p...), "\r\n"...)
		p = c.chunk
	}
	return c.write(p)
}

// EndBody ends the body, with trailers if it came in chunks.
func (c *ClientConn) EndBody(trailers *exchange.Fields) error {
	if !c.chunks {
		return nil
	}
	return c.write(append(trailers.AppendHTTP1([]byte("0\r\n"), framing), "\r\n"...))
}

func (c *ClientConn) write(p []byte) error {
	c.sent.Store(true)
	if err := c.waitRest(); err != nil {
		return err
	}
	_, err := c.c.Write(p)
	return err
}

// waitRest waits until what RoundTrip could not write at once has been written.
func (c *ClientConn) waitRest() error {
	if c.rests == nil {
		return nil
	}
	err := <-c.rests
	c.rests = nil
	return err
}
