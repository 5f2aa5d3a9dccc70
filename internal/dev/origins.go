package dev

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// originHello is how long an origin waits for a request.
const originHello = 10 * time.Second

// origins are web servers that exist in the fabric alone. Each counts its requests and connections, so that a tour can tell what
// was never reached.
type origins struct {
	servers []*http.Server
	serving sync.WaitGroup
	hits    map[string]*atomic.Int64 // by what it is called
}

// originAt is one of them. Those with the same name share a count.
type originAt struct {
	name   string
	at     netip.AddrPort
	secure *tls.Config // nil speaks clear text
	listen func(netip.AddrPort) (*net.TCPListener, error)
}

func newOrigins() *origins { return &origins{hits: map[string]*atomic.Int64{}} }

// serve starts one.
func (o *origins) serve(a originAt) error {
	l, err := a.listen(a.at)
	if err != nil {
		return fmt.Errorf("origin %s: %w", a.name, err)
	}
	hits := o.hits[a.name]
	if hits == nil {
		hits = new(atomic.Int64)
		o.hits[a.name] = hits
	}
	s := &http.Server{
		Handler: originHandler(a.name), ReadHeaderTimeout: originHello, TLSConfig: a.secure, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew { // a connection alone is a hit: nothing may come near a canary
				hits.Add(1)
			}
		},
	}
	o.servers = append(o.servers, s)
	o.serving.Go(func() {
		if a.secure != nil {
			_ = s.ServeTLS(l, "", "") // ends by close only
			return
		}
		_ = s.Serve(l)
	})
	return nil
}

// count is how many connections an origin has had.
func (o *origins) count(name string) int64 { return o.hits[name].Load() }

// close ends them all.
func (o *origins) close() error {
	var errs []error
	for _, s := range o.servers {
		errs = append(errs, s.Close())
	}
	o.serving.Wait()
	return errors.Join(errs...)
}

// originHandler answers with what it has heard, or, at /stream, with a word ten times a second until the client leaves.
func originHandler(name string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(rw http.ResponseWriter, r *http.Request) {
		rw.Header().Set("Content-Type", "text/plain")
		_, _ = fmt.Fprintf(rw, "%s %s %s %s\n", name, r.Method, r.Host, r.URL.Path)
	})
	mux.HandleFunc("/stream", func(rw http.ResponseWriter, r *http.Request) { stream(r.Context(), rw) })
	return mux
}

func stream(ctx context.Context, rw http.ResponseWriter) {
	flush := http.NewResponseController(rw)
	t := time.NewTicker(100 * time.Millisecond)
	defer t.Stop()
	for {
		_, err := rw.Write([]byte("word\n"))
		if err == nil {
			err = flush.Flush()
		}
		if err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}
