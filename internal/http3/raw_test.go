package http3_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/quic-go/qpack"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/quicvarint"
)

// peer speaks frames, right or wrong, over a QUIC connection of its own.
type peer struct {
	t *testing.T
	q *quic.Conn
}

// dial connects; without a control stream of the peer's.
func dial(t *testing.T, r *rig) *peer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	q, err := quic.DialAddr(ctx, r.addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h3"}, ServerName: "gateway.test"}, &quic.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.CloseWithError(0x100, "") })
	return &peer{t, q}
}

// frame is one frame.
func frame(typ uint64, payload []byte) []byte {
	b := quicvarint.Append(quicvarint.Append(nil, typ), uint64(len(payload)))
	return append(b, payload...)
}

// section encodes fields, given as name, value, name, value.
func section(fields ...string) []byte {
	var b bytes.Buffer
	e := qpack.NewEncoder(&b)
	for i := 0; i < len(fields); i += 2 {
		_ = e.WriteField(qpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return b.Bytes()
}

// get is the head of a request, with more fields.
func get(more ...string) []byte { return head("GET", more...) }

func head(method string, more ...string) []byte {
	return frame(1, section(append([]string{":method", method, ":scheme", "https", ":authority", "h", ":path", "/p"}, more...)...))
}

// send opens a stream and sends bytes on it; with end nothing follows.
func (p *peer) send(b []byte, end bool) *quic.Stream {
	p.t.Helper()
	st, err := p.q.OpenStream()
	if err != nil {
		p.t.Fatal(err)
	}
	_, _ = st.Write(b) // the server may have answered, or ended the connection, before it has read all: what is read tells
	if end {
		_ = st.Close()
	}
	return st
}

// control opens a unidirectional stream and sends bytes on it.
func (p *peer) control(b []byte) *quic.SendStream {
	p.t.Helper()
	st, err := p.q.OpenUniStream()
	if err != nil {
		p.t.Fatal(err)
	}
	_, _ = st.Write(b)
	return st
}

// outcome is how the server has ended a stream: with a status, or with the code of a reset, or of the connection's end.
type outcome struct {
	status string
	body   string
	stream uint64
	conn   uint64
}

// await reads a stream to its end.
func (p *peer) await(st *quic.Stream) (o outcome) {
	p.t.Helper()
	_ = st.SetReadDeadline(time.Now().Add(10 * time.Second))
	all, err := io.ReadAll(st)
	o.status, o.body = parse(all)
	var reset *quic.StreamError
	var over *quic.ApplicationError
	switch {
	case errors.As(err, &reset):
		o.stream = uint64(reset.ErrorCode)
	case errors.As(err, &over):
		o.conn = uint64(over.ErrorCode)
	case err != nil:
		p.t.Fatalf("%v behind %q", err, all)
	}
	return o
}

// parse reads frames.
func parse(b []byte) (status, body string) {
	for len(b) > 0 {
		typ, n, err := quicvarint.Parse(b)
		if err != nil {
			return status, body
		}
		l, m, err := quicvarint.Parse(b[n:])
		if err != nil || uint64(len(b)-n-m) < l {
			return status, body
		}
		payload := b[n+m : n+m+int(l)]
		b = b[n+m+int(l):]
		switch typ {
		case 0:
			body += string(payload)
		case 1:
			next := qpack.NewDecoder().Decode(payload)
			for f, err := next(); err == nil; f, err = next() {
				if f.Name == ":status" {
					status = f.Value
				}
			}
		}
	}
	return status, body
}

// over waits for the end of the connection and returns its code.
func (p *peer) over() uint64 {
	p.t.Helper()
	within(p.t, "the end of the connection", p.q.Context().Done())
	var over *quic.ApplicationError
	if err := context.Cause(p.q.Context()); !errors.As(err, &over) {
		p.t.Fatalf("ended by %v", err)
	}
	return uint64(over.ErrorCode)
}

// awaitGoAway reads the server's control stream until it has told n times which streams are the last.
func (p *peer) awaitGoAway(n int) (ids []uint64) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	st, err := p.q.AcceptUniStream(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	_ = st.SetReadDeadline(time.Now().Add(10 * time.Second))
	r := quicvarint.NewReader(st)
	if typ, err := quicvarint.Read(r); err != nil || typ != 0 {
		p.t.Fatalf("a stream of type %d: %v", typ, err)
	}
	for len(ids) < n {
		typ, err := quicvarint.Read(r)
		if err != nil {
			p.t.Fatal(err)
		}
		length, err := quicvarint.Read(r)
		if err != nil {
			p.t.Fatal(err)
		}
		if typ != 7 {
			_, _ = io.CopyN(io.Discard, r, int64(length))
			continue
		}
		id, err := quicvarint.Read(r)
		if err != nil {
			p.t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}
