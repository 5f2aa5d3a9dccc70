package http2_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// flooded keeps what became of a flood in the record.
type flooded struct {
	mu  sync.Mutex
	err *exchange.Error
	got chan struct{}
}

func (h *flooded) Serve(x *exchange.Exchange) error {
	if string(x.Request.Path) == "/quick" {
		return answer(x, 200, "ok")
	}
	<-x.Departed()
	return exchange.ErrDeparted
}

func (h *flooded) Refuse(x *exchange.Exchange, err *exchange.Error) {
	x.Fail(err)
	if err.Code != exchange.CodeFlood {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
	close(h.got)
}

// Each kind of flood ends its connection with ENHANCE_YOUR_CALM, before it has cost much, and is recorded once.
func TestFloods(t *testing.T) {
	raw := func(f *framer, kind xhttp2.FrameType, flags xhttp2.Flags, id uint32, payload []byte) error {
		return f.fr.WriteRawFrame(kind, flags, id, payload)
	}
	block := "\x82\x86\x84\x41\x07h2.test" // GET http / of h2.test
	begin := func(f *framer, flags xhttp2.Flags, payload string) {
		_ = raw(f, xhttp2.FrameHeaders, flags, 1, []byte(payload))
	}
	for _, c := range []struct {
		name  string
		why   string
		begin func(f *framer)
		frame func(f *framer, i int) error
		most  int // that may be taken at once
	}{
		{"PING", "PING frames", nil, func(f *framer, _ int) error { return f.fr.WritePing(false, [8]byte{}) }, 1200},
		{"PING answers that nobody asked for", "PING frames", nil, func(f *framer, _ int) error { return f.fr.WritePing(true, [8]byte{}) }, 1200},
		{"SETTINGS", "SETTINGS frames", nil, func(f *framer, _ int) error { return f.fr.WriteSettings() }, 1200},
		{"long SETTINGS", "SETTINGS frames", nil, func(f *framer, _ int) error {
			return raw(f, xhttp2.FrameSettings, 0, 0, []byte(strings.Repeat("\x00\x04\x00\x00\x00\x01", 2700)))
		}, 10},
		{"PRIORITY", "PRIORITY frames", nil, func(f *framer, i int) error {
			return f.fr.WritePriority(uint32(2*i+1), xhttp2.PriorityParam{Weight: 1})
		}, 1200},
		{"GOAWAY", "GOAWAY frames", nil, func(f *framer, _ int) error { return f.fr.WriteGoAway(0, xhttp2.ErrCodeNo, nil) }, 1200},
		{"unknown frames", "UNKNOWN_FRAME_TYPE_99 frames", nil, func(f *framer, _ int) error { return raw(f, 99, 0, 0, nil) }, 1200},
		{"empty DATA", "empty DATA frames", func(f *framer) { begin(f, xhttp2.FlagHeadersEndHeaders, "\x83"+block[1:]) }, func(f *framer, _ int) error {
			return raw(f, xhttp2.FrameData, 0, 1, nil)
		}, 1200},
		{"padding alone", "empty DATA frames", func(f *framer) { begin(f, xhttp2.FlagHeadersEndHeaders, "\x83"+block[1:]) }, func(f *framer, _ int) error {
			return raw(f, xhttp2.FrameData, xhttp2.FlagDataPadded, 1, append([]byte{255}, make([]byte, 255)...))
		}, 1200},
		{"WINDOW_UPDATE", "WINDOW_UPDATE frames", nil, func(f *framer, _ int) error { return f.fr.WriteWindowUpdate(0, 1) }, 1200},
		{"CONTINUATION", "CONTINUATION frames", func(f *framer) { begin(f, 0, block) }, func(f *framer, i int) error {
			return raw(f, xhttp2.FrameContinuation, 0, 1, []byte(fmt.Sprintf("\x00\x05x-%03d\x01v", i)))
		}, 65},
		{"empty CONTINUATION", "CONTINUATION frames", func(f *framer) { begin(f, 0, block) }, func(f *framer, _ int) error {
			return raw(f, xhttp2.FrameContinuation, 0, 1, nil)
		}, 65},
		{"field bytes", "bytes in a field block", func(f *framer) { begin(f, 0, block) }, func(f *framer, _ int) error {
			return raw(f, xhttp2.FrameContinuation, 0, 1, []byte(strings.Repeat("\x00\x01a\x01v", 3000)))
		}, 4},
		{"streams over the limit", "streams", func(f *framer) {
			for i := range uint32(20) {
				_ = raw(f, xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders|xhttp2.FlagHeadersEndStream, 2*i+1, []byte(block))
			}
		}, func(f *framer, i int) error {
			return raw(f, xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders|xhttp2.FlagHeadersEndStream, uint32(2*i+41), []byte(block))
		}, 100},
		{"malformed heads", "malformed requests", nil, func(f *framer, i int) error {
			return raw(f, xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders|xhttp2.FlagHeadersEndStream, uint32(2*i+1), []byte("\x82"))
		}, 100},
		{"faults on streams", "streams", nil, func(f *framer, i int) error {
			_ = raw(f, xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders, uint32(2*i+1), []byte("\x83"+block[1:]))
			return raw(f, xhttp2.FrameWindowUpdate, 0, uint32(2*i+1), make([]byte, 4))
		}, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			each(t, func(t *testing.T, m mode) {
				h := &flooded{got: make(chan struct{})}
				f := start(t, m, settings(h)).framer(t)
				f.settle()
				last := make(chan string, 1)
				go func() {
					got := f.next()
					for got != "closed" && !strings.HasPrefix(got, "GOAWAY") {
						got = f.next()
					}
					last <- got
				}()
				if c.begin != nil {
					c.begin(f)
				}
				got, tick := "", time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for i := 0; got == "" && c.frame(f, i) == nil; i++ {
					if i < c.most {
						continue
					}
					select { // the budgets grow meanwhile, but not as fast
					case got = <-last:
					case <-tick.C:
					}
				}
				if got == "" {
					got = within(t, "the end of the connection", last)
				}
				if !strings.HasSuffix(got, "ENHANCE_YOUR_CALM") {
					t.Errorf("the connection ended with %q", got)
				}
				f.c.Close()
				within(t, "the record", h.got)
				h.mu.Lock()
				defer h.mu.Unlock()
				if !strings.Contains(h.err.Error(), c.why) {
					t.Errorf("recorded as %q, want %q", h.err, c.why)
				}
			})
		})
	}
}

// What a window full of DATA entitles to does not expire while the client does nothing: Go's asks for more in steps of 4 KiB, on
// the stream and on the connection, and after a pause it does so for all that has come meanwhile.
func TestUpdatesForAWindow(t *testing.T) {
	const frames = 64 << 20 / (16 << 10)
	for _, tc := range []struct {
		frames, updates int
		want            bool
	}{{frames, 8 * frames, true}, {frames, 8*frames + 1200, false}, {1 << 20, 8 << 20, false}, {0, 1000, true}, {0, 1200, false}} {
		if got := http2.Bears(tc.frames, tc.updates); got != tc.want {
			t.Errorf("%d updates for %d frames: %v", tc.updates, tc.frames, got)
		}
	}
}

// The budgets leave what well-behaved clients do: two WINDOW_UPDATEs for every frame.
func TestBudgetsGrow(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		const size = 40 << 20 // 2560 frames
		f := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
			x.Response.Status = 200
			for sent := 0; sent < size; sent += 32 << 10 {
				if err := x.Send(make([]byte, 32<<10), sent+32<<10 >= size); err != nil {
					return err
				}
			}
			return nil
		}))).framer(t)
		f.headers(1, true, nil)
		f.want("HEADERS 1 200")
		for total := 0; total < size; {
			fr, err := f.fr.ReadFrame()
			if err != nil {
				t.Fatalf("after %d bytes: %v", total, err)
			}
			d, ok := fr.(*xhttp2.DataFrame)
			if !ok {
				t.Fatalf("got %v", fr)
			}
			if n := uint32(len(d.Data())); n > 0 {
				total += int(n)
				_ = f.fr.WriteWindowUpdate(0, n)
				_ = f.fr.WriteWindowUpdate(1, n)
			}
		}
	})
}

// A small block that stands for a large field list (CVE-2016-6581): it is refused without being decoded to its end.
func TestFieldBomb(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		f := start(t, m, settings(&flooded{got: make(chan struct{})})).framer(t)
		// One field that fills the table; its length of 4000 is written as 127 and 3873.
		head := "\x82\x86\x84\x41\x07h2.test\x40\x01a\x7f\xa1\x1e" + strings.Repeat("v", 4000)
		bomb := head + strings.Repeat("\xbe", 10000) // each byte is the whole field again
		_ = f.fr.WriteRawFrame(xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders|xhttp2.FlagHeadersEndStream, 1, []byte(bomb))
		f.want("HEADERS 1 431")
		_ = f.next()
		f.headers(3, true, nil, ":path", "/quick")
		f.want("HEADERS 3 200", "DATA 3 ok END")
	})
}

// Memory of connections whose clients send everything they may and read nothing, in the form that costs most.
func TestMemoryBound(t *testing.T) { // not in parallel: it measures the heap
	const (
		conns = 16
		// what docs/protocol/http2.md says of bodies and output, and as much again for pools, heads and the client's side
		bound = 2*(2<<20+20<<10+288<<10) + 256<<10
	)
	begun := make(chan struct{}, 100)
	set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		x.Response.Status = 200
		begun <- struct{}{}
		block := make([]byte, 16<<10)
		for {
			if err := x.Send(block, false); err != nil {
				return err
			}
		}
	}))
	r := start(t, modes[0], set)
	before := heapInUse()
	for range conns {
		f := r.framer(t, widest)
		_ = f.fr.WriteWindowUpdate(0, 1<<31-1-65535)
		const each = 1<<20/20 - 2048
		for i := range uint32(20) {
			f.headers(2*i+1, false, nil, ":method", "POST")
			for sent := 0; sent < each; sent += 1025 { // the smallest piece that takes a buffer of twice its size
				f.data(2*i+1, false, string(make([]byte, 1025)))
			}
		}
		for range 20 {
			within(t, "an exchange", begun)
		}
	}
	if grown := heapInUse() - before; grown > conns*bound {
		t.Errorf("%d KiB a connection, at most %d are allowed", grown/conns>>10, bound>>10)
	} else {
		t.Logf("%d KiB a connection", grown/conns>>10)
	}
}

func heapInUse() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse)
}

// Frames that break the protocol: what ends the stream, what the connection.
func TestBadFrames(t *testing.T) {
	word := func(n uint32) string { return string(binary.BigEndian.AppendUint32(nil, n)) }
	const block = "\x83\x86\x84\x41\x07h2.test" // POST http / of h2.test
	type raw struct {
		kind    xhttp2.FrameType
		flags   xhttp2.Flags
		id      uint32
		payload string
	}
	post := raw{xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders, 1, block}
	full := make([]raw, 0, 80)
	full = append(full, post, raw{xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders, 3, block}, raw{xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders, 5, block},
		raw{xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders, 7, block}, raw{xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders, 9, block})
	for i := range 64 {
		full = append(full, raw{xhttp2.FrameData, 0, uint32(i/16*2 + 1), string(make([]byte, 16<<10))})
	}
	for _, c := range []struct {
		name   string
		frames []raw
		want   string
	}{
		{"DATA on no stream", []raw{{xhttp2.FrameData, 0, 0, "x"}}, "GOAWAY 0 PROTOCOL_ERROR"},
		{"DATA on a stream that is not open", []raw{{xhttp2.FrameData, 0, 1, "x"}}, "GOAWAY 0 PROTOCOL_ERROR"},
		{"DATA on a stream of the server", []raw{post, {xhttp2.FrameData, 0, 2, "x"}}, "GOAWAY 1 PROTOCOL_ERROR"},
		{"padding without a length", []raw{post, {xhttp2.FrameData, xhttp2.FlagDataPadded, 1, ""}}, "GOAWAY 1 FRAME_SIZE_ERROR"},
		{"padding as long as the frame", []raw{post, {xhttp2.FrameData, xhttp2.FlagDataPadded, 1, "\x03ab"}}, "GOAWAY 1 PROTOCOL_ERROR"},
		{"DATA behind the end", []raw{post, {xhttp2.FrameData, xhttp2.FlagDataEndStream, 1, "x"}, {xhttp2.FrameData, 0, 1, "x"}}, "RST_STREAM 1 STREAM_CLOSED"},
		{"one block inside another", []raw{{xhttp2.FrameHeaders, 0, 1, block}, {xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders, 3, block}}, "GOAWAY 1 PROTOCOL_ERROR"},
		{"a frame inside a block", []raw{{xhttp2.FrameHeaders, 0, 1, block}, {xhttp2.FramePing, 0, 0, "12345678"}}, "GOAWAY 1 PROTOCOL_ERROR"},
		{"CONTINUATION of another stream", []raw{{xhttp2.FrameHeaders, 0, 1, block}, {xhttp2.FrameContinuation, xhttp2.FlagContinuationEndHeaders, 3, ""}}, "GOAWAY 1 PROTOCOL_ERROR"},
		{"CONTINUATION of nothing", []raw{{xhttp2.FrameContinuation, xhttp2.FlagContinuationEndHeaders, 1, ""}}, "GOAWAY 0 PROTOCOL_ERROR"},
		{"HEADERS on a stream of the server", []raw{{xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders, 2, block}}, "GOAWAY 0 PROTOCOL_ERROR"},
		{"HEADERS too short for their priority", []raw{{xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders | xhttp2.FlagHeadersPriority, 1, "1234"}}, "GOAWAY 0 FRAME_SIZE_ERROR"},
		{"an index beyond the table", []raw{{xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders, 1, "\xff\x7f"}}, "GOAWAY 1 COMPRESSION_ERROR"},
		{"a block that breaks off", []raw{{xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders, 1, "\x82\x41\x07h2"}}, "GOAWAY 1 COMPRESSION_ERROR"},
		{"trailers that do not end the stream", []raw{post, {xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders, 1, "\x00\x01a\x01b"}}, "RST_STREAM 1 PROTOCOL_ERROR"},
		{"a pseudo field among trailers", []raw{post, {xhttp2.FrameHeaders, xhttp2.FlagHeadersEndHeaders | xhttp2.FlagHeadersEndStream, 1, "\x84"}}, "RST_STREAM 1 PROTOCOL_ERROR"},
		{"RST_STREAM of another length", []raw{post, {xhttp2.FrameRSTStream, 0, 1, "123"}}, "GOAWAY 1 FRAME_SIZE_ERROR"},
		{"RST_STREAM on a stream that is not open", []raw{{xhttp2.FrameRSTStream, 0, 1, word(8)}}, "GOAWAY 0 PROTOCOL_ERROR"},
		{"SETTINGS on a stream", []raw{{xhttp2.FrameSettings, 0, 1, ""}}, "GOAWAY 0 PROTOCOL_ERROR"},
		{"SETTINGS of a broken length", []raw{{xhttp2.FrameSettings, 0, 0, "12345"}}, "GOAWAY 0 FRAME_SIZE_ERROR"},
		{"acknowledgement with a payload", []raw{{xhttp2.FrameSettings, xhttp2.FlagSettingsAck, 0, "\x00\x04" + word(1)}}, "GOAWAY 0 FRAME_SIZE_ERROR"},
		{"initial window too large", []raw{{xhttp2.FrameSettings, 0, 0, "\x00\x04" + word(1<<31)}}, "GOAWAY 0 FLOW_CONTROL_ERROR"},
		{"initial window that lifts one too far", []raw{post, {xhttp2.FrameWindowUpdate, 0, 1, word(1<<31 - 1 - 65535)}, {xhttp2.FrameSettings, 0, 0, "\x00\x04" + word(65536)}}, "GOAWAY 1 FLOW_CONTROL_ERROR"},
		{"frame size too small", []raw{{xhttp2.FrameSettings, 0, 0, "\x00\x05" + word(16383)}}, "GOAWAY 0 PROTOCOL_ERROR"},
		{"push neither on nor off", []raw{{xhttp2.FrameSettings, 0, 0, "\x00\x02" + word(2)}}, "GOAWAY 0 PROTOCOL_ERROR"},
		{"PUSH_PROMISE", []raw{{xhttp2.FramePushPromise, 4, 1, word(2)}}, "GOAWAY 0 PROTOCOL_ERROR"},
		{"PING of another length", []raw{{xhttp2.FramePing, 0, 0, "1234567"}}, "GOAWAY 0 FRAME_SIZE_ERROR"},
		{"PING on a stream", []raw{{xhttp2.FramePing, 0, 1, "12345678"}}, "GOAWAY 0 PROTOCOL_ERROR"},
		{"WINDOW_UPDATE of 0", []raw{{xhttp2.FrameWindowUpdate, 0, 0, word(0)}}, "GOAWAY 0 PROTOCOL_ERROR"},
		{"WINDOW_UPDATE of 0 on a stream", []raw{post, {xhttp2.FrameWindowUpdate, 0, 1, word(0)}}, "RST_STREAM 1 PROTOCOL_ERROR"},
		{"window of the connection too large", []raw{{xhttp2.FrameWindowUpdate, 0, 0, word(1<<31 - 1)}}, "GOAWAY 0 FLOW_CONTROL_ERROR"},
		{"window of a stream too large", []raw{post, {xhttp2.FrameWindowUpdate, 0, 1, word(1<<31 - 1)}}, "RST_STREAM 1 FLOW_CONTROL_ERROR"},
		{"WINDOW_UPDATE on a stream that is not open", []raw{{xhttp2.FrameWindowUpdate, 0, 1, word(1)}}, "GOAWAY 0 PROTOCOL_ERROR"},
		{"a stream that depends on itself", []raw{{xhttp2.FramePriority, 0, 1, word(1) + "x"}}, "GOAWAY 0 PROTOCOL_ERROR"},
		{"GOAWAY too short", []raw{{xhttp2.FrameGoAway, 0, 0, word(1)}}, "GOAWAY 0 FRAME_SIZE_ERROR"},
		{"a stream's window full, and one byte", append(full[:5:5], append(full[5:21:21], raw{xhttp2.FrameData, 0, 1, "x"})...), "RST_STREAM 1 FLOW_CONTROL_ERROR"},
		{"the connection's window full, and one byte", append(full[:69:69], raw{xhttp2.FrameData, 0, 9, "x"}), "GOAWAY 9 FLOW_CONTROL_ERROR"},
	} {
		t.Run(c.name, func(t *testing.T) {
			each(t, func(t *testing.T, m mode) {
				f := start(t, m, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
					<-x.Departed()
					return exchange.ErrDeparted
				}))).framer(t)
				f.settle()
				for _, r := range c.frames {
					if err := f.fr.WriteRawFrame(r.kind, r.flags, r.id, []byte(r.payload)); err != nil {
						t.Fatal(err)
					}
				}
				f.want(c.want)
				if strings.HasPrefix(c.want, "GOAWAY") {
					f.want("closed")
				}
			})
		})
	}
}

// A frame longer than announced, and a first frame that is not SETTINGS.
func TestBadBeginning(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		r := start(t, m, settings(&flooded{got: make(chan struct{})}))
		f := r.framer(t)
		_, _ = io.WriteString(f.c, "\x00\x40\x01\x00\x00\x00\x00\x00\x01")
		f.want("GOAWAY 0 FRAME_SIZE_ERROR", "closed")

		c, err := r.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, xhttp2.ClientPreface+"\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678")
		g := &framer{t: t, r: r, c: c, fr: xhttp2.NewFramer(io.Discard, c), ack: xhttp2.NewFramer(io.Discard, nil)}
		_ = c.SetDeadline(time.Now().Add(patience))
		g.want("GOAWAY 0 PROTOCOL_ERROR", "closed")
	})
}
