package conn

import (
	"errors"
	"io"
	"sync"
)

var relayBuffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// Relayed counts what a relay moved.
type Relayed struct {
	AtoB, BtoA int64
	Err        error // what ended it; nil when both sides ended properly
}

// Relay copies bytes between two connections in both directions until both have ended. The end of one direction is
// passed on alone (half-close); a failure ends both. Relay closes neither connection.
func Relay(a, b Conn) Relayed {
	var r Relayed
	var wg sync.WaitGroup
	var other error
	wg.Add(1)
	go func() {
		defer wg.Done()
		r.AtoB, other = copyOneWay(b, a)
	}()
	r.BtoA, r.Err = copyOneWay(a, b)
	wg.Wait()
	r.Err = errors.Join(r.Err, other)
	return r
}

// copyOneWay moves bytes from src to dst and then ends dst's receiving of them.
func copyOneWay(dst, src Conn) (int64, error) {
	bp := relayBuffers.Get().(*[]byte)
	defer relayBuffers.Put(bp)
	n := int64(0)
	for {
		k, err := src.Read(*bp)
		if k > 0 {
			if _, werr := dst.Write((*bp)[:k]); werr != nil {
				interrupt(src)
				interrupt(dst)
				return n, werr
			}
			n += int64(k)
		}
		if err == io.EOF {
			if w, ok := dst.(CloseWriter); ok {
				_ = w.CloseWrite()
			}
			return n, nil
		}
		if err != nil {
			interrupt(src)
			interrupt(dst)
			return n, err
		}
	}
}

func interrupt(c Conn) {
	if i, ok := c.(Interrupter); ok {
		i.Interrupt()
		return
	}
	_ = c.SetDeadline(longAgo)
}
