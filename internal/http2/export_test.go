package http2

import (
	"errors"

	"golang.org/x/net/http2/hpack"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// Encoders of fields and of request heads.
var (
	AppendField   = appendField
	AppendRequest = func(head []byte) []byte { b, _ := appendRequest(nil, head, true); return b }
)

// RestTime is how long the rest of a body is waited for.
const RestTime = restTime

// ValidAuthority opens the check to tests.
var ValidAuthority = validAuthority

// Spell checks the field list of a request and writes it as an HTTP/1.1 head.
func Spell(set *Settings, fields ...hpack.HeaderField) ([]byte, error) {
	c := &serverConn{srv: NewServer(set, conn.NewClock()), link: link{info: &conn.Info{}}}
	st := newStream(c, 1)
	var h Head
	h.Reset(&st.x.Request, nil, HeadLimits{Bytes: st.set.MaxHeaderBytes, Fields: st.set.MaxHeaders})
	for _, f := range fields {
		h.Field(f.Name, f.Value)
	}
	h.Finish()
	switch {
	case h.Bad != "":
		return nil, errors.New(h.Bad)
	case h.Refused != nil:
		return nil, h.Refused
	}
	q := &st.x.Request
	b := append(append([]byte(nil), q.Method...), ' ')
	b = append(append(b, q.Target...), " HTTP/1.1\r\n"...)
	return append(q.Fields.AppendHTTP1(b, 0), "\r\n"...), nil
}

// Queued is how many streams of a connection wait to send.
func Queued(c *ClientConn) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue)
}

// Bears reports whether a connection that has sent some DATA frames bears that many WINDOW_UPDATE frames at once.
func Bears(dataFrames, updates int) bool {
	b := updateBudget()
	for range dataFrames {
		b.earn(perData)
	}
	for range updates {
		if !b.Spend(1) {
			return false
		}
	}
	return true
}
