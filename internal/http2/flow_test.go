package http2_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	xhttp2 "golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// The order of fields stays, cookies are put together, and trailers need no announcement.
func TestFieldsAsReceived(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		f := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			if _, err := readAll(x); err != nil {
				return err
			}
			var b strings.Builder
			for n, v := range x.Request.Fields.All() {
				fmt.Fprintf(&b, "%s:%s|", n, v)
			}
			for n, v := range x.Request.Trailers.All() {
				fmt.Fprintf(&b, "%s=%s|", n, v)
			}
			return answer(x, 200, b.String())
		}))).framer(t)
		f.headers(1, false, []string{"x-b", "2", "cookie", "a=1", "x-a", "1", "cookie", "b=2", "x-b", "3", "cookie", ""}, ":method", "POST")
		f.data(1, false, "body")
		f.trailers(1, "x-sum", "7", "x-more", "8")
		f.want("HEADERS 1 200", "DATA 1 host:h2.test|x-b:2|x-a:1|x-b:3|cookie:a=1; b=2|x-sum=7|x-more=8| END")
	})
}

// A body that is here whole can be had without waiting, and is then not read twice.
func TestBuffered(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		f := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			first, whole := x.Down.Buffered()
			text := fmt.Sprintf("%q %v", first, whole)
			body, err := readAll(x)
			if err != nil {
				return err
			}
			if again, whole := x.Down.Buffered(); again != nil || whole {
				t.Errorf("then %q %v", again, whole)
			}
			return answer(x, 200, fmt.Sprintf("%s %q", text, body))
		}))).framer(t)
		f.headers(1, true, nil)
		f.want("HEADERS 1 200", `DATA 1 "" true "" END`)
	})
}

// Streams share the connection's window evenly, and one whose client takes nothing keeps nothing from the others.
func TestFairness(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		f := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			x.Response.Status = 200
			for body := make([]byte, 1<<20); ; { // what a handler does between two pieces is no matter of ours
				if err := x.Send(body, false); err != nil {
					return err
				}
			}
		}))).framer(t, xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 0})
		const streams = 5
		got := map[uint32]int{}
		for i := range uint32(streams) {
			f.headers(2*i+1, true, nil)
		}
		for range streams {
			if h := f.next(); !strings.HasPrefix(h, "HEADERS") {
				t.Fatal(h)
			}
		}
		for i := range uint32(streams - 1) { // the last gets no window
			_ = f.fr.WriteWindowUpdate(2*i+1, 1<<30)
		}
		total := 0
		for total < 128<<20 { // long enough for the scheduler of goroutines, which may leave one waiting for 10 ms
			fr, err := f.fr.ReadFrame()
			if err != nil {
				t.Fatal(err)
			}
			if d, ok := fr.(*xhttp2.DataFrame); ok {
				got[d.StreamID] += len(d.Data())
				total += len(d.Data())
				_ = f.fr.WriteWindowUpdate(0, uint32(len(d.Data())))
			}
		}
		for i := range uint32(streams - 1) {
			if n := got[2*i+1]; n < total/(streams-1)/2 {
				t.Errorf("stream %d got %d of %d bytes", 2*i+1, n, total)
			}
		}
		if n := got[2*streams-1]; n != 0 {
			t.Errorf("%d bytes without a window", n)
		}
	})
}

// A drain under load: everything that was sent before the client could know is served, up to the stream that the second
// GOAWAY names. The client never tries anything again.
func TestDrainUnderLoad(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		r := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			b, err := readAll(x)
			if err != nil {
				return err
			}
			return answer(x, 200, string(b))
		})))
		f := r.framer(t)
		free := make(chan struct{}, 15)
		for range cap(free) {
			free <- struct{}{}
		}
		stop := make(chan struct{})
		var sender sync.WaitGroup
		var sent uint32 // the last stream; read once the sender has ended
		sender.Go(func() {
			for id := uint32(1); ; id += 2 {
				select {
				case <-free:
				case <-stop:
					return
				}
				if f.tryHeaders(id, false, nil, ":method", "POST") != nil || f.fr.WriteData(id, true, []byte("body")) != nil {
					return
				}
				sent = id
				if id == 301 {
					r.live.Drain(drain.Prompt)
				}
			}
		})
		answered := map[uint32]bool{}
		last, steps := uint32(0), 0
		for {
			fr, err := f.fr.ReadFrame()
			if err != nil {
				break
			}
			switch fr := fr.(type) {
			case *xhttp2.DataFrame:
				if string(fr.Data()) == "body" && fr.StreamEnded() {
					answered[fr.StreamID] = true
					free <- struct{}{}
				}
			case *xhttp2.RSTStreamFrame:
				t.Errorf("stream %d was reset: %v", fr.StreamID, fr.ErrCode)
			case *xhttp2.PingFrame:
				if !fr.IsAck() {
					close(stop) // the client has understood: it opens no more
					sender.Wait()
					_ = f.fr.WritePing(true, fr.Data)
				}
			case *xhttp2.GoAwayFrame:
				last = fr.LastStreamID
				if steps++; steps == 1 && last != 1<<31-1 {
					t.Errorf("the first GOAWAY names stream %d", last)
				}
			}
		}
		if steps != 2 || last != sent {
			t.Errorf("%d steps; the last stream is %d, %d was sent", steps, last, sent)
		}
		for id := uint32(1); id <= sent; id += 2 {
			if !answered[id] {
				t.Errorf("stream %d was lost", id)
			}
		}
		within(t, "the end of the connection", r.connDone)
	})
}

// Uploads that nobody reads hold most of the connection's window: one that is read goes on in what is left of it.
func TestUploadBesideUnread(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		const size = 300 << 10
		got := make(chan int, 1)
		f := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			if string(x.Request.Path) == "/unread" {
				<-x.Departed()
				return exchange.ErrDeparted
			}
			b, err := readAll(x)
			if err != nil {
				return err
			}
			got <- len(b)
			return answer(x, 200, "ok")
		}))).framer(t)
		f.settle()
		window, stream, sent := 1<<20, 256<<10, 0
		upload := func(until int) {
			for sent < until {
				if n := min(until-sent, window, stream, 16<<10); n > 0 {
					sent, window, stream = sent+n, window-n, stream-n
					f.data(1, sent == size, string(make([]byte, n)))
					continue
				}
				switch fr, err := f.fr.ReadFrame(); fr := fr.(type) {
				case *xhttp2.WindowUpdateFrame:
					if fr.StreamID == 0 {
						window += int(fr.Increment)
					} else {
						stream += int(fr.Increment)
					}
				default:
					t.Fatalf("%v, %v with windows of %d and %d after %d bytes", fr, err, window, stream, sent)
				}
			}
		}
		f.headers(1, false, nil, ":method", "POST")
		upload(150 << 10) // some of the credit is not told yet when the others fill the window
		for id := uint32(3); window > 10<<10; id += 2 {
			f.headers(id, false, nil, ":method", "POST", ":path", "/unread")
			for range min(13, (window-5<<10)/(16<<10)+1) {
				n := min(window-5<<10, 16<<10)
				f.data(id, false, string(make([]byte, n)))
				window -= n
			}
		}
		upload(size)
		if n := within(t, "the upload", got); n != size {
			t.Errorf("%d of %d bytes", n, size)
		}
	})
}

// A client that makes a stream's window negative, by lowering the initial one below what was sent, still gets what needs no
// window; and the connection's window stays what it is.
func TestNegativeWindow(t *testing.T) {
	const first, window = 16 << 10, 1<<16 - 1
	for _, c := range []struct{ name, path, end string }{
		{"end of the body", "/body", "DATA 1  END"},
		{"trailers", "/trailers", "HEADERS 1  END"},
	} {
		t.Run(c.name, func(t *testing.T) {
			each(t, func(t *testing.T, m mode) {
				gate := make(chan struct{})
				f := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
					x.Response.Status = 200
					if string(x.Request.Path) == "/big" {
						return x.Send(make([]byte, 2*window), true)
					}
					if string(x.Request.Path) == "/trailers" {
						x.Response.Trailers.Add("grpc-status", "0")
					}
					if err := x.Send(make([]byte, first), false); err != nil {
						return err
					}
					<-gate
					return x.Send(nil, true)
				}))).framer(t)
				f.headers(1, true, nil, ":path", c.path)
				f.want("HEADERS 1 200", "DATA 1 "+string(make([]byte, first)))
				_ = f.fr.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 0})
				f.settle()
				close(gate)
				f.want(c.end)
				_ = f.fr.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 1 << 20})
				f.headers(3, true, nil, ":path", "/big")
				f.want("HEADERS 3 200")
				for got := first; got < window; {
					piece := f.next()
					got += len(strings.TrimPrefix(piece, "DATA 3 "))
					if !strings.HasPrefix(piece, "DATA 3 ") || got > window {
						t.Fatalf("%.20q after %d of %d bytes", piece, got, window)
					}
				}
				f.settle() // refuses any further frame
			})
		})
	}
}
