package http2_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// framer is a client that speaks in single frames.
type framer struct {
	t   *testing.T
	r   *rig
	c   net.Conn
	fr  *xhttp2.Framer
	ack *xhttp2.Framer // writes for next, while somebody else may write by fr
	enc *hpack.Encoder
	buf bytes.Buffer
}

// framer connects, with these initial settings.
func (r *rig) framer(t *testing.T, s ...xhttp2.Setting) *framer {
	t.Helper()
	c, err := r.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return r.onto(t, c, s...)
}

// onto is framer on a connection that is there.
func (r *rig) onto(t *testing.T, c net.Conn, s ...xhttp2.Setting) *framer {
	t.Helper()
	f := &framer{t: t, r: r, c: c, fr: xhttp2.NewFramer(c, c), ack: xhttp2.NewFramer(c, nil)}
	f.enc = hpack.NewEncoder(&f.buf)
	f.fr.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, xhttp2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := f.fr.WriteSettings(s...); err != nil {
		t.Fatal(err)
	}
	return f
}

// headers sends a request head: a complete one, with the named pseudo fields replaced (or left out, if empty) and fields
// as they are.
func (f *framer) headers(id uint32, end bool, fields []string, pseudo ...string) {
	f.t.Helper()
	if err := f.tryHeaders(id, end, fields, pseudo...); err != nil {
		f.t.Fatal(err)
	}
}

func (f *framer) tryHeaders(id uint32, end bool, fields []string, pseudo ...string) error {
	all := []string{":method", "GET", ":scheme", "http", ":authority", "h2.test", ":path", "/"}
	for i := 0; i < len(pseudo); i += 2 {
		at := slices.Index(all, pseudo[i])
		if pseudo[i+1] == "" {
			all = slices.Delete(all, at, at+2)
		} else {
			all[at+1] = pseudo[i+1]
		}
	}
	f.buf.Reset()
	all = append(all, fields...)
	for i := 0; i < len(all); i += 2 {
		_ = f.enc.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]})
	}
	block := f.buf.Bytes()
	first := block[:min(len(block), 16<<10)]
	block = block[len(first):]
	if err := f.fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, BlockFragment: first, EndStream: end, EndHeaders: len(block) == 0}); err != nil {
		return err
	}
	for len(block) > 0 {
		next := block[:min(len(block), 16<<10)]
		block = block[len(next):]
		if err := f.fr.WriteContinuation(id, len(block) == 0, next); err != nil {
			return err
		}
	}
	return nil
}

func (f *framer) data(id uint32, end bool, s string) {
	f.t.Helper()
	if err := f.fr.WriteData(id, end, []byte(s)); err != nil {
		f.t.Fatal(err)
	}
}

// announcement is the GOAWAY that begins a drain.
const announcement = "GOAWAY 2147483647 NO_ERROR"

// next returns the next frame about a stream, or GOAWAY, in short; "closed" at the end of the connection. It answers
// SETTINGS and PING.
func (f *framer) next() string {
	for {
		fr, err := f.fr.ReadFrame()
		if err != nil {
			return "closed"
		}
		end := ""
		if fr.Header().Flags.Has(xhttp2.FlagDataEndStream) {
			end = " END"
		}
		switch fr := fr.(type) {
		case *xhttp2.MetaHeadersFrame:
			return fmt.Sprintf("HEADERS %d %s%s", fr.StreamID, fr.PseudoValue("status"), end)
		case *xhttp2.DataFrame:
			return fmt.Sprintf("DATA %d %s%s", fr.StreamID, fr.Data(), end)
		case *xhttp2.RSTStreamFrame:
			return fmt.Sprintf("RST_STREAM %d %v", fr.StreamID, fr.ErrCode)
		case *xhttp2.GoAwayFrame:
			return fmt.Sprintf("GOAWAY %d %v", fr.LastStreamID, fr.ErrCode)
		case *xhttp2.SettingsFrame:
			if !fr.IsAck() {
				_ = f.ack.WriteSettingsAck()
			}
		case *xhttp2.PingFrame:
			if !fr.IsAck() {
				_ = f.ack.WritePing(true, fr.Data)
			}
		}
	}
}

// want reads frames and compares them.
func (f *framer) want(frames ...string) {
	f.t.Helper()
	for _, want := range frames {
		if got := f.next(); got != want {
			f.t.Fatalf("got %q, want %q", got, want)
		}
	}
}

// trailers sends the fields that end a stream.
func (f *framer) trailers(id uint32, fields ...string) {
	f.t.Helper()
	f.buf.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = f.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	err := f.fr.WriteHeaders(xhttp2.HeadersFrameParam{StreamID: id, BlockFragment: f.buf.Bytes(), EndStream: true, EndHeaders: true})
	if err != nil {
		f.t.Fatal(err)
	}
}
