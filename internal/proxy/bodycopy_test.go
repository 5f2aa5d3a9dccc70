package proxy_test

import (
	"bytes"
	"io"
	"net/http"
	"runtime"
	"testing"
)

// What has been kept of a body for another attempt goes when there will be none, however long the answer lasts.
func TestCopiesOfBodiesEndWithTheHead(t *testing.T) {
	const size, calls = 250 << 10, 40
	const most = size * calls // what clients and backends keep in this process is less
	release := make(chan struct{})
	defer close(release)
	g := newGateway(t, kernelMode, options{}, foreignH2C(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "begun")
		w.(http.Flusher).Flush()
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	c := g.clients(t)["h1"]
	body := make([]byte, size)
	heap := func() int {
		runtime.GC()
		runtime.GC() // what pools keep goes with the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := heap()
	for range calls {
		res, err := c.Post("http://"+g.addr+"/", "text/plain", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if _, err := io.ReadFull(res.Body, make([]byte, 5)); err != nil {
			t.Fatal(err)
		}
	}
	if grown := heap() - before; grown > most {
		t.Errorf("%d bytes are kept in %d answers", grown, calls)
	}
}
