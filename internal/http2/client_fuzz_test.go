package http2_test

//lint:file-ignore SA1019 the oracle is given its connection

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// serveBytes is a server's end of a connection: settings, and once the request has come the frames, in pieces of a size. What
// the client sends is read all the time.
func serveBytes(c net.Conn, frames []byte, piece int) {
	defer c.Close()
	asked, read := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(read)
		told := false
		defer func() {
			if !told {
				close(asked)
			}
		}()
		pre := make([]byte, len(xhttp2.ClientPreface))
		if _, err := io.ReadFull(c, pre); err != nil {
			return
		}
		fr := xhttp2.NewFramer(io.Discard, c)
		for {
			f, err := fr.ReadFrame()
			if err != nil {
				return
			}
			if f.Header().Type == xhttp2.FrameHeaders && !told {
				told = true
				close(asked)
			}
		}
	}()
	_ = xhttp2.NewFramer(c, nil).WriteSettings()
	<-asked
	for p := range slices.Chunk(frames, max(piece, 1)) {
		if _, err := c.Write(p); err != nil {
			break
		}
	}
	c.Close()
	<-read
}

// told writes a response in a form that is the same for both clients.
func told(status int, fields, trailers map[string][]string, body []byte) string {
	list := func(m map[string][]string) (all []string) {
		for n, v := range m {
			for i := range v {
				v[i] = strings.Trim(v[i], " \t") // the oracle keeps blanks
			}
			if n != "Trailer" { // which it takes away
				all = append(all, fmt.Sprintf("%s=%q", n, v))
			}
		}
		slices.Sort(all)
		return all
	}
	return fmt.Sprintf("%d %v %q %v", status, list(fields), body, list(trailers))
}

func mapped(f *exchange.Fields) map[string][]string {
	m := map[string][]string{}
	for n, v := range f.All() {
		name := http.CanonicalHeaderKey(string(n))
		m[name] = append(m[name], string(v))
	}
	return m
}

// hear is what our client makes of the frames; "" a failure.
func hear(t *testing.T, frames []byte, piece int) string {
	near, far := conn.Pipe()
	served := make(chan struct{})
	go func() { defer close(served); serveBytes(far, frames, piece) }()
	cc := http2.NewClientConn(near, &http2.ClientSettings{}, conn.NewClock())
	defer func() {
		cc.Close()
		for _, done := range []<-chan struct{}{cc.Done(), served} {
			select {
			case <-done:
			case <-time.After(10 * time.Second):
				t.Fatal("the connection does not end")
			}
		}
	}()
	<-cc.Ready()
	s, ok := cc.Open()
	if !ok {
		t.Fatal(cc.Err())
	}
	defer s.Release(true)
	a := &reply{}
	if err := a.do(s, "GET /", ""); err != nil {
		return ""
	}
	return told(a.Status, mapped(&a.fields), mapped(&a.trailers), a.body.Bytes())
}

// oracle is what the client of golang.org/x/net makes of them.
func oracle(frames []byte, piece int) string {
	near, far := conn.Pipe()
	served := make(chan struct{})
	go func() { defer close(served); serveBytes(far, frames, piece) }()
	defer func() { near.Close(); <-served }()
	cc, err := (&xhttp2.Transport{AllowHTTP: true, DisableCompression: true}).NewClientConn(near)
	if err != nil {
		return ""
	}
	defer cc.Close()
	req, _ := http.NewRequest("GET", "http://h2.test/", nil)
	res, err := cc.RoundTrip(req)
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return ""
	}
	return told(res.StatusCode, res.Header, res.Trailer, body)
}

// response spells frames of a response for the corpus.
func response(f func(fr *xhttp2.Framer, head func(end bool, fields ...string))) []byte {
	var out, block bytes.Buffer
	enc, fr := hpack.NewEncoder(&block), xhttp2.NewFramer(&out, nil)
	fr.AllowIllegalWrites = true
	f(fr, func(end bool, fields ...string) {
		block.Reset()
		for i := 0; i < len(fields); i += 2 {
			_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
		}
		_ = fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: end, EndHeaders: true})
	})
	return out.Bytes()
}

// FuzzClient holds our client against another one: whatever a server sends, a response that we take for whole is the same
// response there, and a connection always ends.
func FuzzClient(f *testing.F) {
	type heads = func(end bool, fields ...string)
	for _, play := range []func(fr *xhttp2.Framer, head heads){
		func(_ *xhttp2.Framer, head heads) { head(true, ":status", "204") },
		func(fr *xhttp2.Framer, head heads) {
			head(false, ":status", "200", "content-length", "2", "x", " y ")
			_ = fr.WriteData(1, true, []byte("ok"))
		},
		func(fr *xhttp2.Framer, head heads) {
			head(false, ":status", "103", "link", "</a>")
			head(false, ":status", "200", "content-type", "application/grpc")
			_ = fr.WriteDataPadded(1, false, []byte("ok"), make([]byte, 9))
			_ = fr.WritePing(false, [8]byte{1})
			head(true, "grpc-status", "0")
		},
		func(fr *xhttp2.Framer, head heads) {
			head(false, ":status", "200", "content-length", "3")
			_ = fr.WriteData(1, true, []byte("ok"))
		},
		func(fr *xhttp2.Framer, head heads) {
			head(false, ":status", "200")
			_ = fr.WriteGoAway(1, 0, nil)
			_ = fr.WriteSettings(xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 9}, xhttp2.Setting{ID: xhttp2.SettingMaxConcurrentStreams, Val: 0})
			_ = fr.WriteWindowUpdate(0, 100)
			_ = fr.WriteRSTStream(1, xhttp2.ErrCodeNo)
		},
		func(fr *xhttp2.Framer, _ heads) {
			_ = fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x88}})
			_ = fr.WriteContinuation(1, true, []byte{0x0f, 0x0d, 0x01, '0'})
			_ = fr.WriteData(1, true, nil)
		},
		func(_ *xhttp2.Framer, head heads) { head(true, ":status", "200", "transfer-encoding", "chunked") },
	} {
		f.Add(response(play), 7)
		f.Add(response(play), 1<<20)
	}
	f.Fuzz(func(t *testing.T, frames []byte, piece int) {
		if len(frames) > 32<<10 {
			return
		}
		ours := hear(t, frames, piece)
		if ours == "" { // we may be stricter
			return
		}
		if theirs := oracle(frames, piece); ours != theirs && !lenient(ours, theirs) {
			t.Errorf("we have\n%s\nwhere another client has\n%s", ours, theirs)
		}
	})
}

// lenient accepts what the other client refuses although the response is whole: it takes offence at what comes behind the
// response, or at what we trim.
func lenient(_, theirs string) bool { return theirs == "" || strings.HasPrefix(theirs, "101 ") }
