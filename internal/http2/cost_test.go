package http2_test

import (
	"encoding/binary"
	"io"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// asker sends the same request again and again, and reads answers of a known length. It allocates nothing.
type asker struct {
	*framer
	request, answer []byte
	id              uint32
}

// newAsker has the server send its settings and learn the request's fields first.
func newAsker(t *testing.T, f *framer, body string) *asker {
	for id := uint32(1); id <= 3; id += 2 {
		f.headers(id, body == "", []string{"user-agent", "asker/1.0", "accept", "*/*", "x-trace", "0123456789"}, ":method", "POST")
		if body != "" {
			f.data(id, true, body)
		}
		f.want("HEADERS "+string('0'+byte(id))+" 200", "DATA "+string('0'+byte(id))+" ok END")
	}
	f.settle()
	a := &asker{framer: f, id: 5, answer: make([]byte, 9+5+9+2)}
	block := f.buf.Bytes() // all of it is in the table now
	a.request = binary.BigEndian.AppendUint32(nil, uint32(len(block))<<8|uint32(xhttp2.FrameHeaders))
	flags := xhttp2.FlagHeadersEndHeaders
	if body == "" {
		flags |= xhttp2.FlagHeadersEndStream
	}
	a.request = append(append(a.request, byte(flags), 0, 0, 0, 0), block...)
	if body != "" {
		a.request = binary.BigEndian.AppendUint32(a.request, uint32(len(body))<<8|uint32(xhttp2.FrameData))
		a.request = append(append(a.request, byte(xhttp2.FlagDataEndStream), 0, 0, 0, 0), body...)
	}
	return a
}

func (a *asker) ask(t *testing.T) {
	n := int(a.request[0])<<16 | int(a.request[1])<<8 | int(a.request[2])
	binary.BigEndian.PutUint32(a.request[5:], a.id)
	if len(a.request) > 9+n {
		binary.BigEndian.PutUint32(a.request[9+n+5:], a.id)
	}
	a.id += 2
	if _, err := a.c.Write(a.request); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(a.c, a.answer); err != nil {
		t.Fatal(err)
	}
}

// What a request costs whose fields are known: nothing.
func TestAllocations(t *testing.T) { // not in parallel: it counts what everybody allocates
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for name, body := range map[string]string{"GET": "", "POST": "0123456789"} {
		t.Run(name, func(t *testing.T) {
			ok := []byte("ok")
			f := start(t, modes[0], settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
				for {
					_, err := x.Down.ReadBody()
					x.Down.ReleaseBody()
					if err == io.EOF {
						break
					}
					if err != nil {
						return err
					}
				}
				x.Response.Status = 200
				return x.Send(ok, true)
			}))).framer(t)
			a := newAsker(t, f, body)
			_ = f.c.SetDeadline(time.Now().Add(time.Minute))
			for range 500 {
				a.ask(t)
			}
			if got := string(a.answer[len(a.answer)-2:]); got != "ok" {
				t.Fatalf("%q", a.answer)
			}
			defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would empty the pools
			const rounds = 2000
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range rounds {
				a.ask(t)
			}
			runtime.ReadMemStats(&after)
			each := float64(after.Mallocs-before.Mallocs) / rounds
			t.Logf("%.2f allocations, %.0f bytes an exchange", each, float64(after.TotalAlloc-before.TotalAlloc)/rounds)
			if each > 0.1 {
				t.Errorf("%.2f allocations an exchange, none is allowed", each)
			}
		})
	}
}
