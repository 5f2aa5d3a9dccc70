package proxy

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

// pump sends a request body that does not lie ready, from a goroutine of its own, while the response is awaited and
// relayed. Its fields but the atomics and the copy belong to that goroutine until done is closed.
type pump struct {
	done     chan struct{} // nil: not running
	err      error         // the client's body failed
	failed   atomic.Bool   // so it did
	whole    bool          // all of it was sent, undisturbed
	allRead  atomic.Bool   // only writing is left
	answered atomic.Bool   // the response head is here: the upload no longer moves the deadline
	stopped  atomic.Bool   // nobody wants the rest of the body: that its reading fails says nothing
	copy     *bodyCopy     // nil: the body is sent once
}

// pumpGrace is how long the end of an upload is waited for after the end of its response, which may overtake it by as much as
// a goroutine waits for its turn. Only a backend that has answered without taking the rest makes anybody wait for all of it.
const pumpGrace = 200 * time.Millisecond

// startPump begins to send the request body.
func (f *forward) startPump() {
	done := make(chan struct{})
	f.pump.done = done
	if f.up.HTTP2() {
		f.pump.copy = newBodyCopy(f.up)
	}
	f.up.BeginBody(f.x.Request.ContentLength)
	go func() {
		defer close(done)
		defer func() {
			if v := recover(); v != nil {
				f.uploadFailed(fmt.Errorf("panic while sending the request body: %v", v))
			}
		}()
		f.upload()
	}()
}

// uploadFailed has the exchange end for the client's body.
func (f *forward) uploadFailed(err error) {
	f.pump.err = err
	f.pump.failed.Store(true)
	f.x.Guard.Ring(conn.CauseUpload)
}

// upload moves the request body to the backend. A backend that stops reading is no failure: it may have answered.
func (f *forward) upload() {
	x := f.x
	left := x.Request.ContentLength // negative: unknown
	known := left >= 0
	for {
		p, err := x.Down.ReadBody()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && f.pump.stopped.Load() {
			return
		}
		if err != nil {
			f.uploadFailed(err)
			return
		}
		if left -= int64(len(p)); left == 0 && known {
			f.pump.allRead.Store(true)
		}
		ok := f.pass(p)
		x.Down.ReleaseBody()
		if !ok {
			return
		}
		f.uploaded()
	}
	f.pump.allRead.Store(true)
	x.Request.Trailers.DelFunc(func(id exchange.FieldID, _, _ []byte) bool { return made.Has(id) })
	x.Request.Trailers.StripHopByHop()
	f.strip(&x.Request.Trailers)
	f.pump.whole = f.pass(nil)
}

// pass sends body bytes, or the end of the body if there are none. False: nobody wants the body.
func (f *forward) pass(p []byte) bool {
	if f.pump.copy == nil {
		return f.passTo(f.up, p)
	}
	return f.pump.copy.pass(f, p)
}

// passTo is pass to one connection.
func (f *forward) passTo(up service.Upstream, p []byte) bool {
	if p == nil {
		return up.EndBody(&f.x.Request.Trailers) == nil
	}
	return up.Write(p) == nil
}

// uploaded restarts the wait for the response head with the bytes just sent, in a gRPC call also that for more of the answer.
func (f *forward) uploaded() {
	if f.pump.answered.Load() {
		if f.call { // messages of either side keep a stream open
			f.x.Guard.Extend(f.policy.StreamIdleTimeout)
		}
		return
	}
	f.x.Guard.Extend(f.policy.RequestTimeout)
	if f.pump.answered.Load() { // just now: its limit was overwritten
		f.x.Guard.Extend(f.policy.StreamIdleTimeout)
	}
}

// stopPump ends the pump and waits for it. One that must be interrupted has not sent everything.
func (f *forward) stopPump() {
	if f.pump.done == nil {
		return
	}
	if !f.pumpEnded() {
		f.pump.stopped.Store(true)
		f.x.Down.InterruptBody()
		if f.up != nil {
			f.up.Interrupt()
		}
		if f.pump.copy != nil {
			f.pump.copy.close()
		}
		<-f.pump.done
		f.pump.whole = false
	}
	f.pump.done = nil
}

// pumpEnded reports whether the pump has ended by itself.
func (f *forward) pumpEnded() bool {
	select {
	case <-f.pump.done:
		return true
	default:
	}
	if !f.pump.allRead.Load() {
		return false
	}
	grace := time.NewTimer(pumpGrace)
	defer grace.Stop()
	select {
	case <-f.pump.done:
		return true
	case <-grace.C:
		return false
	}
}
