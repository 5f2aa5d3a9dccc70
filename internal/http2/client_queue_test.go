package http2_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// gated is a connection to which nothing is written while closed is held.
type gated struct {
	*conn.MemoryConn
	closed  sync.Mutex
	entered chan struct{} // somebody writes
}

func (g *gated) Write(b []byte) (int, error) {
	select {
	case g.entered <- struct{}{}:
	default:
	}
	g.closed.Lock()
	defer g.closed.Unlock()
	return g.MemoryConn.Write(b)
}

// KF-H2G-04: a head that has waited for its turn until the server took leave gives the turn on: what was begun is sent to its end.
func TestKF_H2G_04_TurnOfAHeadTooLate(t *testing.T) {
	const size = 4 << 20
	near, far := conn.Pipe()
	gate := &gated{MemoryConn: near, entered: make(chan struct{}, 1)}
	cc, srv := scriptOver(t, gate, far, &http2.ClientSettings{}, xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 2 * size})
	_ = srv.fr.WriteWindowUpdate(0, 2*size)
	_ = srv.fr.WritePing(false, [8]byte{})
	srv.await(xhttp2.FramePing) // the windows are known
	_ = srv.c.SetDeadline(time.Now().Add(patience))
	ask := func(s *http2.ClientStream) (sent chan struct{}, end chan error) {
		sent, end = make(chan struct{}), make(chan error, 1)
		go func() {
			head := "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
			_, err := s.RoundTrip([]byte(head), nil, nil, false, &exchange.Fields{}, &reply{sent: func() { close(sent) }})
			end <- err
		}()
		return sent, end
	}
	write := func(s *http2.ClientStream) chan error {
		end := make(chan error, 1)
		go func() { end <- s.Write(make([]byte, size)) }() // more than there is room for
		return end
	}
	first, begun, late := open(t, cc), open(t, cc), open(t, cc)
	for _, s := range []*http2.ClientStream{first, begun, late} {
		defer s.Release(false)
	}
	sent, _ := ask(first)
	<-sent
	sent, answered := ask(begun)
	<-sent
	srv.await(xhttp2.FrameHeaders)
	srv.await(xhttp2.FrameHeaders) // all of it is written
	gate.closed.Lock()
	select {
	case <-gate.entered:
	default:
	}
	cut := write(first) // it takes all the room
	<-gate.entered
	queued(t, cc, 1)
	_, refused := ask(late)
	queued(t, cc, 2)
	whole := write(begun)
	queued(t, cc, 3)
	first.Interrupt() // the head is the next now
	<-cut
	_ = srv.fr.WriteGoAway(3, xhttp2.ErrCodeNo, nil)
	for start := time.Now(); cc.State().Usable; time.Sleep(time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatal("GOAWAY is not heard")
		}
	}
	gate.closed.Unlock()
	for got := 0; got < size; {
		d, ok := srv.await(xhttp2.FrameData).(*xhttp2.DataFrame)
		if !ok {
			t.Fatalf("only %d bytes come", got)
		}
		if d.StreamID == 3 {
			got += len(d.Data())
		}
	}
	if err := <-whole; err != nil {
		t.Error(err)
	}
	if err := <-refused; !errors.Is(err, exchange.ErrUnprocessed) {
		t.Error(err)
	}
	srv.head(3, true, ":status", "200")
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

// queued waits until n streams wait to send.
func queued(t *testing.T, c *http2.ClientConn, n int) {
	t.Helper()
	for start := time.Now(); http2.Queued(c) < n; time.Sleep(time.Millisecond) {
		if time.Since(start) > patience {
			t.Fatalf("%d streams wait to send, not %d", http2.Queued(c), n)
		}
	}
}
