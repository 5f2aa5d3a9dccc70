package app_test

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// connector is an HTTP/2 client that knows extended CONNECT (RFC 8441), which the standard library's does not. It grants
// the server windows that no test uses up.
type connector struct {
	t  testing.TB
	c  net.Conn
	fr *http2.Framer

	mu      sync.Mutex // guards the fields below, and writing
	cond    *sync.Cond
	offered bool  // SETTINGS_ENABLE_CONNECT_PROTOCOL
	first   int64 // window of new streams
	window  int64 // of the connection
	streams map[uint32]*extended
	next    uint32
	err     error
	enc     *hpack.Encoder
	block   bytes.Buffer
}

// extended is one stream: a body to read, and a Writer that keeps to the windows.
type extended struct {
	c      *connector
	id     uint32
	window int64
	head   http.Header
	status int
	in     bytes.Buffer
	ended  bool
	err    error
}

// newConnector dials a server.
func newConnector(t testing.TB, addr string) *connector {
	c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	k := &connector{t: t, c: c, fr: http2.NewFramer(c, c), first: 65535, window: 65535, streams: make(map[uint32]*extended), next: 1}
	k.cond = sync.NewCond(&k.mu)
	k.enc = hpack.NewEncoder(&k.block)
	k.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err = io.WriteString(c, http2.ClientPreface)
	if err = errors.Join(err, k.fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}), k.fr.WriteWindowUpdate(0, 1<<30)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); k.read() }()
	t.Cleanup(func() { _ = c.Close(); <-done })
	return k
}

// read takes frames until the connection ends.
func (k *connector) read() {
	for {
		f, err := k.fr.ReadFrame()
		k.mu.Lock()
		if err != nil {
			k.err = err
		} else {
			k.take(f)
		}
		k.cond.Broadcast()
		k.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (k *connector) take(f http2.Frame) {
	s := k.streams[f.Header().StreamID]
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			return
		}
		_ = f.ForeachSetting(func(v http2.Setting) error {
			switch v.ID {
			case http2.SettingEnableConnectProtocol:
				k.offered = v.Val == 1
			case http2.SettingInitialWindowSize:
				for _, s := range k.streams {
					s.window += int64(v.Val) - k.first
				}
				k.first = int64(v.Val)
			}
			return nil
		})
		_ = k.fr.WriteSettingsAck()
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = k.fr.WritePing(true, f.Data)
		}
	case *http2.WindowUpdateFrame:
		if s != nil {
			s.window += int64(f.Increment)
		} else if f.StreamID == 0 {
			k.window += int64(f.Increment)
		}
	case *http2.MetaHeadersFrame:
		s.head = make(http.Header)
		for _, h := range f.RegularFields() {
			s.head.Add(h.Name, h.Value)
		}
		s.status, _ = strconv.Atoi(f.PseudoValue("status"))
		s.ended = f.StreamEnded()
	case *http2.DataFrame:
		s.in.Write(f.Data())
		s.ended = f.StreamEnded()
	case *http2.RSTStreamFrame:
		s.err = errors.New("reset by the server: " + f.ErrCode.String())
	}
}

// open sends an extended CONNECT and returns the answer, as which the body of the stream is read.
func (k *connector) open(path string, fields []string) (*extended, *http.Response) {
	k.t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	for !k.offered && k.err == nil {
		k.cond.Wait()
	}
	s := &extended{c: k, id: k.next, window: k.first}
	k.next += 2
	k.streams[s.id] = s
	k.block.Reset()
	for _, f := range append([]string{
		":method: CONNECT", ":protocol: websocket", ":scheme: https", ":authority: " + k.c.RemoteAddr().String(), ":path: " + path,
	}, fields...) {
		i := strings.Index(f[1:], ": ") + 1
		_ = k.enc.WriteField(hpack.HeaderField{Name: strings.ToLower(f[:i]), Value: f[i+2:]})
	}
	if err := k.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: s.id, BlockFragment: k.block.Bytes(), EndHeaders: true}); err != nil {
		k.t.Fatal(err)
	}
	for s.status == 0 && s.over() == nil {
		k.cond.Wait()
	}
	if s.status == 0 {
		k.t.Fatalf("extended CONNECT: %v", s.over())
	}
	return s, &http.Response{StatusCode: s.status, Status: strconv.Itoa(s.status), Header: s.head, Body: io.NopCloser(s)}
}

// over is why nothing more comes.
func (s *extended) over() error {
	switch {
	case s.err != nil:
		return s.err
	case s.ended:
		return io.EOF
	}
	return s.c.err
}

// Read waits for bytes.
func (s *extended) Read(p []byte) (int, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	for s.in.Len() == 0 {
		if err := s.over(); err != nil {
			return 0, err
		}
		s.c.cond.Wait()
	}
	return s.in.Read(p)
}

// Write sends bytes as the windows allow.
func (s *extended) Write(p []byte) (int, error) {
	k := s.c
	k.mu.Lock()
	defer k.mu.Unlock()
	for rest := p; len(rest) > 0; {
		n := min(int64(len(rest)), s.window, k.window, 16384)
		if err := s.over(); err != nil && err != io.EOF {
			return len(p) - len(rest), err
		}
		if n <= 0 {
			k.cond.Wait()
			continue
		}
		if err := k.fr.WriteData(s.id, false, rest[:n]); err != nil {
			return len(p) - len(rest), err
		}
		s.window -= n
		k.window -= n
		rest = rest[n:]
	}
	return len(p), nil
}

// end sends END_STREAM.
func (s *extended) end() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	_ = s.c.fr.WriteData(s.id, true, nil)
}

// reset gives the stream up.
func (s *extended) reset() {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	_ = s.c.fr.WriteRSTStream(s.id, http2.ErrCodeCancel)
}
