package egress

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"
)

// TailOptions say which lines of an audit log are of interest.
type TailOptions struct {
	// Last is how many of those that are there already; below 0 all.
	Last int
	// Follow waits for further ones until the context ends, also when the file is truncated, or replaced by another.
	Follow bool
	// Atespace, Actor and Verdict are of whom and how; "" any.
	Atespace, Actor, Verdict string
}

// AuditLine is a line of an audit log, and what it says.
type AuditLine struct {
	Text   []byte // without the end of the line; the reader's own
	Record Record
}

const (
	maxAuditLine = 64 << 10 // a longer one is none of ours
	tailPause    = 200 * time.Millisecond
)

// TailAudit reads the audit log in a file and hands over the lines of interest in their order. It returns how many lines were no
// records, such as one that was still being written when the log ended, and the first error of reading or of put. It holds no more
// than Last lines at a time.
func TailAudit(ctx context.Context, path string, o TailOptions, put func(AuditLine) error) (strange int, err error) {
	t := &auditTail{o: o, put: put, past: true}
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	for {
		if err := t.read(f); err != nil {
			return t.strange, err
		}
		if err := t.end(); err != nil || !o.Follow {
			return t.strange, err
		}
		select {
		case <-ctx.Done():
			return t.strange, nil
		case <-time.After(tailPause):
		}
		next, err := t.renewed(f, path)
		if err != nil {
			return t.strange, err
		}
		if next != f {
			_ = f.Close()
			f = next
		}
	}
}

// auditTail is a reading under way.
type auditTail struct {
	o       TailOptions
	put     func(AuditLine) error
	past    bool        // the end has not been reached for the first time
	kept    []AuditLine // of the past, the last ones; from first on, around the end
	first   int
	part    []byte // of a line whose end has not come
	long    bool   // it has become too long
	strange int
}

// read takes the lines up to the end of what there is.
func (t *auditTail) read(f *os.File) error {
	for r := bufio.NewReaderSize(f, maxAuditLine); ; {
		piece, err := r.ReadSlice('\n')
		if t.long = t.long || len(t.part)+len(piece) > maxAuditLine; t.long {
			t.part = t.part[:0]
		} else {
			t.part = append(t.part, piece...)
		}
		switch {
		case err == nil:
			if err := t.line(); err != nil {
				return err
			}
		case errors.Is(err, io.EOF):
			return nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
}

// line takes the line that is whole now.
func (t *auditTail) line() error {
	var l AuditLine
	if t.long || json.Unmarshal(t.part, &l.Record) != nil || l.Record.Verdict == "" {
		t.strange++
	} else if t.wanted(&l.Record) {
		l.Text = append([]byte(nil), t.part[:len(t.part)-1]...)
		if err := t.take(l); err != nil {
			return err
		}
	}
	t.part, t.long = t.part[:0], false
	return nil
}

func (t *auditTail) wanted(r *Record) bool {
	return (t.o.Atespace == "" || r.Atespace == t.o.Atespace) && (t.o.Actor == "" || r.Actor == t.o.Actor) &&
		(t.o.Verdict == "" || r.Verdict == t.o.Verdict)
}

// take hands a line over, or keeps it until the end of the past is known.
func (t *auditTail) take(l AuditLine) error {
	switch {
	case !t.past || t.o.Last < 0:
		return t.put(l)
	case len(t.kept) < t.o.Last:
		t.kept = append(t.kept, l)
	case t.o.Last > 0:
		t.kept[t.first] = l
		t.first = (t.first + 1) % t.o.Last
	}
	return nil
}

// end hands over what of the past is of interest.
func (t *auditTail) end() error {
	if !t.past {
		return nil
	}
	t.past = false
	for i := range t.kept {
		if err := t.put(t.kept[(t.first+i)%len(t.kept)]); err != nil {
			return err
		}
	}
	t.kept = nil
	if !t.o.Follow && (len(t.part) > 0 || t.long) {
		t.strange++
	}
	return nil
}

// renewed returns the file to go on with: f at its place, f from its beginning if it was truncated, or what has replaced it.
func (t *auditTail) renewed(f *os.File, path string) (*os.File, error) {
	there, gone := os.Stat(path) // before f, which has all its lines once it has been replaced
	own, err := f.Stat()
	if err != nil {
		return nil, err
	}
	at, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, err
	}
	if own.Size() < at {
		t.part, t.long = t.part[:0], false
		_, err := f.Seek(0, io.SeekStart)
		return f, err
	}
	if gone != nil || os.SameFile(own, there) || own.Size() > at { // it may be away for a moment; what was written last comes first
		return f, nil
	}
	next, err := os.Open(path)
	if err != nil {
		return f, nil
	}
	t.part, t.long = t.part[:0], false
	return next, nil
}
