package conn_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

var (
	pgSSL = []byte{0, 0, 0, 8, 4, 210, 22, 47}
	pgGSS = []byte{0, 0, 0, 8, 4, 210, 22, 48}
)

// talker sends its pieces and keeps what it is answered.
type talker struct {
	pieces
	answers bytes.Buffer
}

func talks(all ...[]byte) *talker { return &talker{pieces: pieces{all: all}} }

func (c *talker) Write(b []byte) (int, error) { return c.answers.Write(b) }

func TestAnswerTLSRequest(t *testing.T) {
	hello := []byte{22, 3, 1, 0, 5, 'h', 'e', 'l', 'l', 'o'}
	for _, c := range []struct {
		name    string
		pieces  [][]byte
		answers string
		asked   bool
		left    []byte // what can be read afterwards
		err     error
	}{
		{"TLS at once", [][]byte{hello}, "", false, hello, nil},
		{"TLS asked for", [][]byte{pgSSL, hello}, "S", true, hello, nil},
		{"in pieces", [][]byte{pgSSL[:1], pgSSL[1:7], pgSSL[7:], hello}, "S", true, hello, nil},
		{"GSSAPI first", [][]byte{pgGSS, pgSSL, hello}, "NS", true, hello, nil},
		{"GSSAPI, then TLS at once", [][]byte{pgGSS, hello}, "N", false, hello, nil},
		{"GSSAPI twice", [][]byte{pgGSS, pgGSS}, "N", false, pgGSS, nil},
		{"TLS twice", [][]byte{pgSSL, pgSSL}, "S", true, pgSSL, nil},
		{"bytes behind it", [][]byte{append(pgSSL[:8:8], 'x')}, "", false, nil, conn.ErrStuffed},
		{"bytes behind GSSAPI", [][]byte{append(pgGSS[:8:8], pgSSL...)}, "", false, nil, conn.ErrStuffed},
		{"another request", [][]byte{{0, 0, 0, 8, 4, 210, 22, 46}, hello}, "", false, append([]byte{0, 0, 0, 8, 4, 210, 22, 46}, hello...), nil},
		{"a start without encryption", [][]byte{{0, 0, 0, 9, 0, 3, 0, 0, 0}}, "", false, []byte{0, 0, 0, 9, 0, 3, 0, 0, 0}, nil},
		{"the end in the middle", [][]byte{pgSSL[:5]}, "", false, pgSSL[:5], io.EOF},
		{"nothing", nil, "", false, nil, io.EOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := talks(c.pieces...)
			again, asked, err := conn.AnswerTLSRequest(conn.NewPlain(w, conn.Info{}), time.Minute)
			if asked != c.asked || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) || w.answers.String() != c.answers {
				t.Errorf("asked %v, err %v, answers %q", asked, err, w.answers.String())
			}
			if left, _ := io.ReadAll(again); c.err != conn.ErrStuffed && !bytes.Equal(left, c.left) {
				t.Errorf("left %x, want %x", left, c.left)
			}
		})
	}
}

func TestAnswerTLSRequestTimeout(t *testing.T) {
	a, far := net.Pipe()
	b := conn.NewPlain(far, conn.Info{})
	defer a.Close()
	defer b.Close()
	_, _, err := conn.AnswerTLSRequest(b, 20*time.Millisecond)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	go a.Write([]byte("x"))
	if n, err := b.Read(make([]byte, 1)); n != 1 { // the deadline is gone
		t.Error(err)
	}
}

func TestRequestTLS(t *testing.T) {
	for answer, ok := range map[string]bool{"S": true, "N": false, "E": false, "": false} {
		w := talks([]byte(answer))
		err := conn.RequestTLS(conn.NewPlain(w, conn.Info{}))
		if (err == nil) != ok || !bytes.Equal(w.answers.Bytes(), pgSSL) {
			t.Errorf("%q: %v, sent %x", answer, err, w.answers.Bytes())
		}
	}
}

// However the bytes are cut, what is not taken for a request can be read again, and no more is answered than was asked.
func FuzzAnswerTLSRequest(f *testing.F) {
	f.Add(append(pgGSS[:8:8], pgSSL...), uint8(8))
	f.Add([]byte("\x16\x03\x01"), uint8(1))
	f.Fuzz(func(t *testing.T, all []byte, cut uint8) {
		k := min(int(cut), len(all))
		w := talks(bytes.Clone(all[:k]), bytes.Clone(all[k:]))
		again, asked, err := conn.AnswerTLSRequest(conn.NewPlain(w, conn.Info{}), time.Minute)
		if errors.Is(err, conn.ErrStuffed) {
			return
		}
		left, _ := io.ReadAll(again)
		taken := 8 * w.answers.Len()
		if taken > 16 || asked != bytes.HasSuffix(w.answers.Bytes(), []byte("S")) || !bytes.Equal(append(all[:taken:taken], left...), all) {
			t.Errorf("%x cut at %d: answers %q, left %x, %v", all, k, w.answers.String(), left, err)
		}
	})
}
