package http2

import (
	"net/http"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// ValidAuthority opens the check to tests.
var ValidAuthority = validAuthority

// Spell checks a request that the frame loop has decoded and writes it as an HTTP/1.1 head.
func Spell(r *http.Request, set *Settings) ([]byte, error) {
	st := &stream{c: &serverConn{info: &conn.Info{}}, set: set.withDefaults(), r: r}
	if err := st.fill(); err != nil {
		return nil, err
	}
	q := &st.x.Request
	b := append(append([]byte(nil), q.Method...), ' ')
	b = append(append(b, q.Target...), " HTTP/1.1\r\n"...)
	return append(q.Fields.AppendHTTP1(b, 0), "\r\n"...), nil
}
