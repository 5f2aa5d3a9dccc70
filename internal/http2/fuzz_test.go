package http2_test

//lint:file-ignore SA1019 the oracle is served connection by connection

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// seen is what a server made of the requests of one connection, by their paths; several may have the same.
type seen struct {
	mu       sync.Mutex
	requests map[string][]string
	noted    chan struct{}
}

func newSeen() *seen { return &seen{requests: map[string][]string{}, noted: make(chan struct{}, 100)} }

func (s *seen) note(path, text string) {
	s.mu.Lock()
	s.requests[path] = append(s.requests[path], text)
	s.mu.Unlock()
	s.noted <- struct{}{}
}

// find looks for a request with this path that is as it should be, and returns all with the path; the oracle's handlers
// outlast its connection.
func (s *seen) find(path string, match func(text string) bool) (all []string, ok bool) {
	for late := time.After(patience); ; {
		s.mu.Lock()
		all = slices.Clone(s.requests[path])
		s.mu.Unlock()
		if slices.ContainsFunc(all, match) {
			return all, true
		}
		select {
		case <-s.noted:
		case <-late:
			return all, false
		}
	}
}

// describe writes a request in a form that is the same for both servers. A body that broke off says only that.
func describe(method, target, host string, fields map[string][]string, body []byte, err error) string {
	var lines []string
	for name, values := range fields {
		switch name {
		case "Host", "Expect", "Trailer": // the oracle takes these away
			continue
		case "Cookie": // the oracle keeps empty pieces
			pieces := slices.DeleteFunc(strings.Split(values[0], "; "), func(s string) bool { return s == "" })
			values = []string{strings.Join(pieces, "; ")}
		}
		lines = append(lines, fmt.Sprintf("%s=%q", name, values))
	}
	slices.Sort(lines)
	if err != nil {
		return fmt.Sprintf("%s %s %s %v broken", method, target, host, lines)
	}
	return fmt.Sprintf("%s %s %s %v %q", method, target, host, lines, body)
}

func (s *seen) Serve(x *exchange.Exchange) error {
	q := &x.Request
	fields := map[string][]string{}
	for n, v := range q.Fields.All() {
		name := http.CanonicalHeaderKey(string(n))
		fields[name] = append(fields[name], string(v))
	}
	target, method, host := string(q.Target), string(q.Method), string(q.Host)
	early := len(target)%2 == 0 // some answer before they read, so that SETTINGS may come behind a part of the answer
	if x.Response.Status = 200; early {
		if err := x.Send([]byte("early"), false); err != nil {
			s.note(target, describe(method, target, host, fields, nil, err))
			return err
		}
	}
	body, err := readAll(x)
	s.note(target, describe(method, target, host, fields, body, err))
	if err != nil {
		return err
	}
	if len(body)%2 == 1 {
		x.Response.Trailers.Add("x-end", "1")
	}
	return x.Send(nil, true)
}

func (s *seen) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	s.note(r.RequestURI, describe(r.Method, r.RequestURI, r.Host, r.Header, body, err))
}

// play sends frames to a server and waits until it has dealt with them, or has ended the connection. done is closed when
// serve has returned, soon after.
func play(frames []byte, serve func(net.Conn)) (ended bool, done chan struct{}) {
	ours, theirs := net.Pipe()
	done = make(chan struct{})
	go func() {
		defer close(done)
		serve(theirs)
	}()
	_ = ours.SetDeadline(time.Now().Add(10 * time.Second))
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		fr := xhttp2.NewFramer(io.Discard, ours)
		for {
			f, err := fr.ReadFrame()
			if ended = err != nil; ended {
				return
			}
			switch f := f.(type) {
			case *xhttp2.PingFrame:
				if f.IsAck() && string(f.Data[:]) == "the last" {
					return
				}
			case *xhttp2.GoAwayFrame: // either server then waits for us
				ended = true
				return
			}
		}
	}()
	var end bytes.Buffer
	fr := xhttp2.NewFramer(&end, nil)
	_ = fr.WritePing(false, [8]byte([]byte("the last")))
	go func() { // in pieces, so that streams run while the rest arrives
		for piece := range slices.Chunk(slices.Concat(frames, end.Bytes()), 64) {
			if _, err := ours.Write(piece); err != nil {
				return
			}
		}
	}()
	<-answered
	ours.Close()
	return ended, done
}

// lingering bounds the oracle's connections that are not over. It keeps one whose framing broke for a second after its
// GOAWAY, whatever the client does; waited for each time, that second would be all that the fuzzing does.
var lingering = make(chan struct{}, 1024)

// playOracle plays the frames to the server of golang.org/x/net. What became of its requests is noted in to when it is known.
func playOracle(frames []byte, to *seen) (ended bool) {
	lingering <- struct{}{}
	ended, _ = play(frames, func(c net.Conn) {
		defer func() { <-lingering }()
		base := &http.Server{ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
		(&xhttp2.Server{}).ServeConn(c, &xhttp2.ServeConnOpts{Handler: to, BaseConfig: base})
	})
	return ended
}

// awaitOracle returns when none of its connections is left.
func awaitOracle() {
	for range cap(lingering) {
		lingering <- struct{}{}
	}
	for range cap(lingering) {
		<-lingering
	}
}

// script turns fuzz input into frames that mostly make sense: requests whose paths tell them apart, with fields and bodies
// out of the input, cut, padded and mixed.
type script struct {
	in   []byte
	out  bytes.Buffer
	fr   *xhttp2.Framer
	enc  *hpack.Encoder
	buf  bytes.Buffer
	next uint32
	open []uint32
}

func (s *script) byte() byte {
	if len(s.in) == 0 {
		return 0
	}
	b := s.in[0]
	s.in = s.in[1:]
	return b
}

func (s *script) text() string {
	n := min(int(s.byte()%24), len(s.in))
	v := string(s.in[:n])
	s.in = s.in[n:]
	return v
}

var scriptNames = []string{"x-a", "x-b", "cookie", "host", "content-length", "te", "expect", "connection", "trailer", "accept", "transfer-encoding"}

func (s *script) field() {
	name := scriptNames[int(s.byte())%len(scriptNames)]
	if s.byte() == 0 {
		name = s.text()
	}
	value := s.text()
	if name == "content-length" && s.byte()%4 > 0 {
		value = fmt.Sprint(s.byte() % 16)
	}
	_ = s.enc.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: s.byte()%4 == 0})
}

// request begins a stream.
func (s *script) request() {
	id := s.next
	s.next += 2
	s.buf.Reset()
	path := fmt.Sprintf("/%d.", id) // see streamOf
	if s.byte()%8 == 0 {
		path += s.text()
	}
	all := []hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "h2.test"}, {Name: ":path", Value: path}}
	switch i := int(s.byte()); {
	case i < 8:
		all[i%4].Value = strings.ReplaceAll(s.text(), "/", "|")
	case i < 12:
		all = slices.Delete(all, i-8, i-7)
	case i < 16:
		all = append(all, all[i-12])
	}
	for _, f := range all {
		_ = s.enc.WriteField(f)
	}
	for range s.byte() % 6 {
		s.field()
	}
	if end := s.block(id); !end {
		s.open = append(s.open, id)
	}
}

// block sends what has been encoded, cut in up to three.
func (s *script) block(id uint32) (end bool) {
	end = s.byte()%2 == 0
	b := s.buf.Bytes()
	cut := len(b)
	if s.byte()%4 == 0 {
		cut = int(s.byte()) % (len(b) + 1)
	}
	_ = s.fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, BlockFragment: b[:cut], EndStream: end, EndHeaders: cut == len(b), PadLength: s.byte() % 3})
	if cut < len(b) {
		_ = s.fr.WriteContinuation(id, true, b[cut:])
	}
	return end
}

func (s *script) step() {
	id := s.next
	if len(s.open) > 0 {
		id = s.open[int(s.byte())%len(s.open)]
	}
	switch s.byte() % 16 {
	case 0, 1, 2, 3, 4:
		s.request()
	case 5, 6, 7, 8:
		end := s.byte()%2 == 0
		_ = s.fr.WriteDataPadded(id, end, []byte(s.text()), make([]byte, s.byte()%4))
		if end {
			s.open = slices.DeleteFunc(s.open, func(o uint32) bool { return o == id })
		}
	case 9:
		s.buf.Reset()
		s.field()
		s.block(id)
	case 10:
		id := xhttp2.SettingInitialWindowSize
		if s.byte()%2 == 0 {
			id = xhttp2.SettingID(s.byte() % 10)
		}
		_ = s.fr.WriteSettings(xhttp2.Setting{ID: id, Val: uint32(s.byte()) << (s.byte() % 25)})
	case 11:
		_ = s.fr.WritePing(s.byte()%2 == 0, [8]byte{s.byte()})
	case 12:
		_ = s.fr.WriteWindowUpdate(id*uint32(s.byte()%2), uint32(s.byte()))
	case 13:
		_ = s.fr.WritePriority(id, xhttp2.PriorityParam{StreamDep: uint32(s.byte()), Weight: s.byte()})
	case 14:
		_ = s.fr.WriteRawFrame(xhttp2.FrameType(s.byte()), xhttp2.Flags(s.byte()), uint32(s.byte()), []byte(s.text()))
	case 15:
		_ = s.fr.WriteRawFrame(xhttp2.FrameType(s.byte()%10), xhttp2.Flags(s.byte()), id, []byte(s.text()))
	}
}

func writeScript(in []byte) []byte {
	s := &script{in: in, next: 1}
	s.fr, s.enc = xhttp2.NewFramer(&s.out, nil), hpack.NewEncoder(&s.buf)
	s.fr.AllowIllegalWrites = true
	s.out.WriteString(xhttp2.ClientPreface)
	_ = s.fr.WriteSettings()
	for len(s.in) > 0 && s.next < 40 {
		s.step()
	}
	return s.out.Bytes()
}

// FuzzServer plays the same frames to this server and to the one of golang.org/x/net. Whatever we serve, it must serve with
// the same head and the same body; that we refuse more is on purpose. Where it ends the connection for what to us is a
// fault of one stream (a malformed head in more than one frame), what comes behind that is not compared.
func FuzzServer(f *testing.F) {
	f.Add([]byte("\x00\x01\x11\x02\x00\x01\x04body\x00"))
	f.Add([]byte("\x00\x00\x01\xff\x03\x00\x01\x03abc\x00\x02\x01\x02b=\x00\x05\x01\x00\x05hello\x00\x00"))
	f.Add(bytes.Repeat([]byte{0, 0, 1, 40, 2, 1, 5, 1, 3, 'a', 'b', 'c', 1, 1, 0}, 6))
	f.Add(bytes.Repeat([]byte{0, 0, 1, 40, 1, 4, 1, 0, 1, 4, 1, 1, 1, 0, 5, 1, 4, 'b', 'o', 'd', 'y', 0}, 4))
	f.Add(bytes.Repeat([]byte{0, 0, 1, 40, 0, 1, 1, 0, 0, 10, 1, 0, 0, 0, 5, 0, 1, 'b', 0}, 3)) // a window that becomes negative
	clock := conn.NewClock()
	ctx, cancel := context.WithCancel(context.Background())
	ticking := make(chan struct{})
	go func() { defer close(ticking); _ = clock.Run(ctx) }()
	f.Cleanup(func() { cancel(); <-ticking; awaitOracle() })
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 1<<10 {
			t.Skip()
		}
		frames := writeScript(in)
		ours, theirs := newSeen(), newSeen()
		_, done := play(frames, func(c net.Conn) {
			set := settings(ours)
			http2.NewServer(set, clock).ServeConn(plainConn(c), nil)
		})
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatal("our server does not end")
		}
		ended := playOracle(frames, theirs)
		compare(t, ours, theirs, ended, frames)
	})
}

// streamOf is the stream of a request by its path, which is how scripts begin those that they make up.
func streamOf(path string) (id uint32, ok bool) {
	n, err := fmt.Sscanf(path, "/%d.", &id)
	return id, err == nil && n == 1
}

// reached is the last stream that is known to have been served. The last one in a GOAWAY may be one that came behind the end.
func (s *seen) reached() (last uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for path := range s.requests {
		if id, ok := streamOf(path); ok {
			last = max(last, id)
		}
	}
	return last
}

// compare looks at what ours, of which nothing runs any more, has made of requests, and at what the oracle has. What came
// behind the end of the oracle's connection, if that was its choice, is not compared.
func compare(t *testing.T, ours, theirs *seen, ended bool, frames []byte) {
	last := theirs.reached()
	for path, texts := range ours.requests {
		if id, ok := streamOf(path); ended && (!ok || id > last) {
			continue
		}
		for _, got := range texts {
			if strings.HasSuffix(got, " broken") {
				continue // as far as it matters, it was refused
			}
			all, ok := theirs.find(path, func(want string) bool {
				head, cut := strings.CutSuffix(want, " broken") // perhaps its connection has ended before the body did
				return got == want || ended && cut && strings.HasPrefix(got, head+" ")
			})
			if !ok {
				t.Errorf("we read  %s\nthe other %s\nof %q", got, strings.Join(all, "\nand       "), frames)
			}
		}
	}
}
