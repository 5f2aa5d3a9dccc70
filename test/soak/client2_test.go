//go:build linux

package soak_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"time"
)

// client2 is one HTTP/2 connection at a time, shared by several requests. The library may send a request again that the
// server has told it never to have looked at (RFC 9113, section 8.7); that is counted, and nothing else is repeated.
type client2 struct {
	name      string
	report    *report
	address   string
	transport *http.Transport
	sent      atomic.Int64
}

// perConnection2 is how many requests share a connection.
const perConnection2 = 4

func newClient2(name string, s *soak) *client2 {
	p := new(http.Protocols)
	p.SetHTTP2(true)
	return &client2{name: name, report: s.report, address: s.setup.tls, transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: s.setup.ca.pool(), ServerName: serverName}, Protocols: p,
		DisableCompression: true,
	}}
}

// get sends a request and hands its answer to read. It reports failures itself.
func (c *client2) get(path, id, body string, read func(io.Reader) error) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	written := 0
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() {
		if written++; written > 1 {
			c.report.replays.Add(1)
		}
	}})
	method, rest := http.MethodGet, io.Reader(nil)
	if body != "" {
		method, rest = http.MethodPost, strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, "https://"+c.address+path, rest)
	if err != nil {
		c.report.fail("h2 request", id, "%v", err)
		return false
	}
	req.Host = serverName
	req.Header.Set("X-Request-Id", id)
	res, err := c.transport.RoundTrip(req)
	if err != nil {
		c.report.fail("h2 no answer", id, "%s: %v", id, err)
		return false
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK || res.ProtoMajor != 2 {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 200))
		c.report.fail(fmt.Sprintf("h2 status %d", res.StatusCode), id, "%s: %s %q", id, res.Proto, text)
		return false
	}
	if err := read(res.Body); err != nil {
		c.report.fail("h2 body", id, "%s: %v", id, err)
		return false
	}
	return true
}

func (c *client2) id() string { return fmt.Sprintf("%s-%d", c.name, c.sent.Add(1)) }

// load sends requests until told to stop, with a little rest between them: their number is not the point.
func (c *client2) load(stop *atomic.Bool) {
	for n := 0; !stop.Load(); n++ {
		id := c.id()
		path := routes[n%len(routes)] + id
		body, want := "", path
		if n%3 == 0 {
			body, want = "a small body", path+" 12 eaa08388"
		}
		ok := c.get(path, id, body, func(r io.Reader) error {
			got, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			if _, text, _ := strings.Cut(string(got), " "); text != want {
				return fmt.Errorf("%.200q, want %q", got, want)
			}
			return nil
		})
		if ok {
			c.report.answered2.Add(1)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// stream reads one stream from its first to its last event.
func (c *client2) stream(length time.Duration) {
	id := c.id()
	path := "/stream/" + id
	events := int(length / streamPace)
	ok := c.get(fmt.Sprintf("%s?events=%d", path, events), id, "", func(body io.Reader) error {
		return readEvents(bufio.NewReader(body), path, events, func() {}, c.report)
	})
	if ok {
		c.report.streams.Add(1)
	}
}

// readEvents reads a stream to its end and compares it with what was asked for. before is called before each event.
func readEvents(lines *bufio.Reader, path string, events int, before func(), r *report) error {
	last := time.Now()
	for i := 0; i <= events; i++ {
		before()
		want := fmt.Sprintf("data: %s %d\n", path, i)
		if i == events {
			want = "data: [DONE]\n"
		}
		got, err := lines.ReadString('\n')
		if err == nil && got == want {
			var blank string
			blank, err = lines.ReadString('\n')
			got += strings.TrimSuffix(blank, "\n")
		}
		if err != nil {
			return fmt.Errorf("cut at event %d of %d, behind %q: %w", i, events, got, err)
		}
		if got != want {
			return fmt.Errorf("event %d of %d is %q", i, events, got)
		}
		r.gap(time.Since(last))
		last = time.Now()
		r.events.Add(1)
	}
	if _, err := lines.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("after the last event: %w", err)
	}
	return nil
}
