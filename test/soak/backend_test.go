//go:build linux

package soak_test

import (
	"bufio"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// backend is a plain server that tells in each answer whom it answers, so that a mix-up shows. It closes connections
// in the agreed manner only: after an answer that says so.
type backend struct {
	name     string
	report   *report
	listener net.Listener
	stop     chan struct{}
	served   sync.WaitGroup

	mu    sync.Mutex // guards conns
	conns map[net.Conn]bool
}

// perConnection is after how many answers a backend asks for another connection.
const perConnection = 500

func startBackend(t *testing.T, name string, r *report) *backend {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &backend{name: name, report: r, listener: l, stop: make(chan struct{}), conns: make(map[net.Conn]bool)}
	b.served.Go(b.accept)
	t.Cleanup(func() {
		close(b.stop)
		_ = l.Close()
		b.mu.Lock()
		for c := range b.conns {
			_ = c.Close()
		}
		b.mu.Unlock()
		b.served.Wait()
	})
	return b
}

func (b *backend) url() string { return "http://" + b.listener.Addr().String() }

func (b *backend) accept() {
	for {
		c, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		b.conns[c] = true
		b.mu.Unlock()
		b.served.Go(func() {
			b.serve(c)
			b.mu.Lock()
			delete(b.conns, c)
			b.mu.Unlock()
		})
	}
}

func (b *backend) serve(c net.Conn) {
	defer c.Close()
	r, w := bufio.NewReaderSize(c, 8192), bufio.NewWriterSize(c, 8192)
	for n := 1; ; n++ {
		req, err := http.ReadRequest(r)
		if err != nil {
			select {
			case <-b.stop:
			default:
				if !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
					b.report.fail("backend read", "", "backend %s: a request that is none: %v", b.name, err)
				}
			}
			return
		}
		last := n >= perConnection
		if err := b.answer(w, req, last); err != nil {
			b.report.fail("backend", req.Header.Get("X-Request-Id"), "backend %s, %s: %v", b.name, req.URL.Path, err)
			return
		}
		if last {
			return
		}
	}
}

// answer answers one request. An error is something that the gateway did wrong.
func (b *backend) answer(w *bufio.Writer, req *http.Request, last bool) error {
	connection := ""
	if last {
		connection = "Connection: close\r\n"
	}
	switch {
	case strings.HasPrefix(req.URL.Path, "/stream"):
		return b.stream(w, req, connection)
	case req.Method == http.MethodPost:
		sum := crc32.NewIEEE()
		n, err := io.Copy(sum, req.Body)
		if err != nil {
			return fmt.Errorf("request body cut after %d bytes: %w", n, err)
		}
		return respond(w, connection, fmt.Sprintf("%s %s %d %08x", b.name, req.URL.Path, n, sum.Sum32()))
	default:
		return respond(w, connection, b.name+" "+req.URL.Path)
	}
}

// respond sends a short answer; every third is chunked, by its length.
func respond(w *bufio.Writer, connection, text string) error {
	_, _ = w.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n" + connection)
	if len(text)%3 == 0 {
		fmt.Fprintf(w, "Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(text), text)
	} else {
		fmt.Fprintf(w, "Content-Length: %d\r\n\r\n%s", len(text), text)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("answering: %w", err)
	}
	return nil
}

// streamPace is the time between two events.
const streamPace = 200 * time.Millisecond

// stream sends as many numbered events as the query asks for.
func (b *backend) stream(w *bufio.Writer, req *http.Request, connection string) error {
	events, err := strconv.Atoi(req.URL.Query().Get("events"))
	if err != nil {
		return err
	}
	_, _ = w.WriteString("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n" + connection + "\r\n")
	tick := time.NewTicker(streamPace)
	defer tick.Stop()
	for i := range events + 1 {
		event := fmt.Sprintf("data: %s %d\n\n", req.URL.Path, i)
		if i == events {
			event = "data: [DONE]\n\n"
		}
		fmt.Fprintf(w, "%x\r\n%s\r\n", len(event), event)
		if i == events {
			_, _ = w.WriteString("0\r\n\r\n")
		}
		if err := w.Flush(); err != nil {
			return fmt.Errorf("stream closed by the gateway after %d of %d events: %w", i, events, err)
		}
		if i == events {
			break
		}
		select {
		case <-tick.C:
		case <-b.stop:
			return nil
		}
	}
	return nil
}
