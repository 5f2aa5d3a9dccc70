package http1

import "github.com/sluice-proxy/sluice/internal/exchange"

// SkippedLine reports whether an empty line was skipped before the request that d serves.
func SkippedLine(d exchange.Downstream) bool { return d.(*serverConn).head.begin > 0 }

// ParsedHead is what the head parser found.
type ParsedHead struct {
	Done    bool
	Status  int // of the error that refused it; 0 none
	End     int
	Method  string
	Target  string
	Host    string
	Length  int64
	Chunked bool
	Close   bool
	Code    int // of a response
	Fields  string
}

// ParseHead parses a head that arrives in pieces ending at the given offsets of b, then at its end.
func ParseHead(b []byte, cuts []int, lim Limits, request bool) ParsedHead {
	var h head
	var f exchange.Fields
	h.reset()
	for _, n := range append(cuts, len(b)) {
		if n == 0 {
			continue
		}
		piece := append([]byte(nil), b[:n]...) // each time elsewhere, as in a buffer that grows
		done, err := h.parse(piece, &f, lim, request)
		switch {
		case err != nil:
			return ParsedHead{Status: err.Status}
		case done:
			return ParsedHead{
				Done: true, End: h.end, Method: string(h.method.of(piece)), Target: string(h.target.of(piece)),
				Host: string(h.host.of(piece)), Length: h.length, Chunked: h.chunked, Close: h.close, Code: h.status,
				Fields: string(f.AppendHTTP1(nil, 0)),
			}
		}
	}
	return ParsedHead{}
}

// Chunks follows the chunked coding for tests.
type Chunks struct{ dec chunked }

// Next gives a piece to the decoder; it returns the data in it, how much of it was used, and whether the body has ended.
func (c *Chunks) Next(b []byte) (data []byte, used int, done bool, err error) {
	for used < len(b) && !done && err == nil {
		var n int
		var p []byte
		n, p, done, err = c.dec.next(b[used:])
		used += n
		data = append(data, p...)
	}
	return data, used, done, err
}

// Trailers parses the trailer section of an ended body.
func (c *Chunks) Trailers(f *exchange.Fields) error { return c.dec.trailers(f) }

// Raw is the verbatim form of Next; b is changed.
func (c *Chunks) Raw(b []byte) (exchange.RawRun, int, error) { return c.dec.raw(b) }
