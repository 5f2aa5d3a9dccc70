package http2_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	xhttp2 "golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/http2"
)

// taken answers CONNECT with 200 and hands the conn to do, which is to end it.
func taken(do func(c conn.Conn)) exchange.Handler {
	return exchange.HandlerFunc(func(x *exchange.Exchange) error {
		x.Response.Status = 200
		if err := x.Send(nil, true); err != nil {
			return err
		}
		c, err := x.Down.Takeover()
		if err != nil {
			return err
		}
		do(c)
		return nil
	})
}

// connecting are the settings of a server that takes CONNECT.
func connecting(h exchange.Handler) *http2.Settings {
	set := settings(h)
	set.Connect, set.MaxStreams = true, 1024
	return set
}

// tunnel asks for one.
func (f *framer) tunnel(id uint32) {
	f.t.Helper()
	f.headers(id, false, nil, ":method", "CONNECT", ":scheme", "", ":path", "", ":authority", "target.test:443")
}

func echoTunnel(c conn.Conn) {
	_, _ = io.Copy(c, c)
	_ = c.(conn.CloseWriter).CloseWrite()
	_ = c.Close()
}

func TestTunnel(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		f := start(t, m, connecting(taken(echoTunnel))).framer(t)
		f.tunnel(1)
		f.want("HEADERS 1 200")
		f.data(1, false, "hello")
		f.want("DATA 1 hello")
		f.tunnel(3)
		f.data(3, true, "early") // with the request, and half-closed
		f.want("HEADERS 3 200", "DATA 3 early", "DATA 3  END")
		f.data(1, true, "bye")
		f.want("DATA 1 bye", "DATA 1  END")
	})
}

// What a tunnel looks like from the other end, by how the handler leaves it.
func TestTunnelEnds(t *testing.T) {
	end := func(c conn.Conn) { _ = c.(conn.CloseWriter).CloseWrite() }
	tests := []struct {
		name string
		do   func(c conn.Conn)
		want []string
	}{
		{"closed without an end", func(c conn.Conn) { _ = c.Close() }, []string{"RST_STREAM 1 CANCEL"}},
		{"closed after its end", func(c conn.Conn) { end(c); _ = c.Close() }, []string{"DATA 1  END", "RST_STREAM 1 NO_ERROR"}},
		{"aborted", func(c conn.Conn) { _ = c.(*http2.StreamConn).Abort() }, []string{"RST_STREAM 1 CONNECT_ERROR"}},
		{"aborted after its end", func(c conn.Conn) { end(c); _ = c.(*http2.StreamConn).Abort() }, []string{"DATA 1  END", "RST_STREAM 1 NO_ERROR"}},
		{"left open", func(conn.Conn) {}, []string{"RST_STREAM 1 INTERNAL_ERROR"}},
		{"bytes before the close", func(c conn.Conn) { _, _ = io.WriteString(c, "x"); _ = c.Close() }, []string{"DATA 1 x", "RST_STREAM 1 CANCEL"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := start(t, modes[1], connecting(taken(tt.do))).framer(t)
			f.tunnel(1)
			f.want("HEADERS 1 200")
			f.want(tt.want...)
			f.headers(3, true, nil) // the connection goes on
			f.want("HEADERS 3 405")
		})
	}
}

// What the other end does, as the handler sees it.
func TestTunnelPeer(t *testing.T) {
	type seen struct {
		read, write error
		data        string
		gone        bool
	}
	run := func(t *testing.T, act func(f *framer)) seen {
		got := make(chan seen, 1)
		f := start(t, modes[1], connecting(taken(func(c conn.Conn) {
			defer c.Close()
			var s seen
			var all []byte
			all, s.read = io.ReadAll(c)
			s.data, s.gone = string(all), c.(conn.Prober).PeerGone()
			_, s.write = c.Write([]byte("x"))
			got <- s
		}))).framer(t)
		f.tunnel(1)
		f.want("HEADERS 1 200")
		f.data(1, false, "some")
		act(f)
		return within(t, "the end", got)
	}
	if s := run(t, func(f *framer) { f.data(1, true, "") }); s.read != nil || s.write != nil || s.data != "some" || !s.gone {
		t.Errorf("after END_STREAM: %+v", s)
	}
	if s := run(t, func(f *framer) { _ = f.fr.WriteRSTStream(1, xhttp2.ErrCodeCancel) }); !errors.Is(s.read, syscall.ECONNRESET) ||
		!errors.Is(s.write, syscall.ECONNRESET) || s.data != "some" || !s.gone {
		t.Errorf("after a reset: %+v", s)
	}
	if s := run(t, func(f *framer) { f.c.Close() }); !errors.Is(s.read, syscall.ECONNRESET) || !errors.Is(s.write, syscall.ECONNRESET) {
		t.Errorf("after the end of the connection: %+v", s)
	}
	if s := run(t, func(f *framer) { f.trailers(1, "a", "b"); f.want("RST_STREAM 1 PROTOCOL_ERROR") }); !errors.Is(s.read, syscall.ECONNRESET) {
		t.Errorf("after a field block: %+v", s)
	}
}

// Deadlines end reads and writes, pending ones too, and can be lifted.
func TestTunnelDeadlines(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		result := make(chan error, 1)
		h := taken(func(c conn.Conn) {
			result <- deadlines(c)
			_ = c.Close()
		})
		f := start(t, m, connecting(h)).framer(t, xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 0})
		f.tunnel(1)
		f.want("HEADERS 1 200")
		f.data(1, false, "1")
		_ = f.fr.WriteWindowUpdate(1, 2)
		f.want("DATA 1 ab")
		_ = f.fr.WriteWindowUpdate(1, 1)
		f.want("DATA 1 c")
		f.data(1, false, "2")
		if err := within(t, "the end", result); err != nil {
			t.Error(err)
		}
	})
}

func deadlines(c conn.Conn) error {
	b := make([]byte, 8)
	if _, err := io.ReadFull(c, b[:1]); err != nil || b[0] != '1' {
		return fmt.Errorf("first byte %q %w", b[0], err)
	}
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := c.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("read after the deadline: %w", err)
	}
	_ = c.SetReadDeadline(time.Time{})
	if n, err := c.Write([]byte("ab")); n != 2 || err != nil {
		return fmt.Errorf("write: %d %w", n, err)
	}
	_ = c.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
	sent, err := c.Write([]byte("cde")) // one byte may have been allowed meanwhile
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("write after the deadline: %w", err)
	}
	_ = c.SetWriteDeadline(time.Time{})
	if _, err := c.Write([]byte("c")[sent:]); err != nil {
		return fmt.Errorf("write after the deadline was lifted: %w", err)
	}
	if _, err := c.Read(b); err != nil || b[0] != '2' {
		return fmt.Errorf("read after the deadline was lifted: %q %w", b[0], err)
	}
	time.AfterFunc(10*time.Millisecond, conn.InterrupterOf(c).Interrupt)
	if _, err := c.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("read that was interrupted: %w", err)
	}
	time.AfterFunc(10*time.Millisecond, func() { _ = c.Close() })
	_ = c.SetDeadline(time.Time{})
	if _, err := c.Read(b); err == nil {
		return errors.New("read of a closed tunnel")
	}
	return nil
}

// KF_TUN_06: what comes before the decision is kept within the window, and delivered after it; more ends the tunnel.
func TestKF_TUN_06_BytesBeforeTheDecision(t *testing.T) {
	decided := make(chan struct{})
	h := taken(echoTunnel)
	set := connecting(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		select {
		case <-decided:
			return h.Serve(x)
		case <-x.Departed():
			return exchange.ErrDeparted
		}
	}))
	f := start(t, modes[1], set).framer(t, xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 1 << 20})
	_ = f.fr.WriteWindowUpdate(0, 1<<20)
	f.tunnel(1)
	f.tunnel(3)
	piece := strings.Repeat("x", 16<<10)
	for range 4 {
		f.data(1, false, piece)
		f.data(3, false, piece)
	}
	f.data(3, false, "!")
	f.want("RST_STREAM 3 FLOW_CONTROL_ERROR")
	close(decided)
	f.want("HEADERS 1 200")
	for n := 0; n < 64<<10; {
		got, ok := strings.CutPrefix(f.next(), "DATA 1 ")
		if !ok {
			t.Fatalf("got %.40q", got)
		}
		n += len(got)
	}
}

// A client that opens tunnels and reads nothing of half of them is served the other half.
func TestTunnelsUnread(t *testing.T) { // not in parallel: it measures the heap
	const tunnels, unread, size = 1000, 500, 100 << 10
	var fed sync.WaitGroup
	fed.Add(tunnels)
	set := connecting(taken(func(c conn.Conn) {
		defer c.Close()
		b := bytes.Repeat([]byte("d"), size)
		_, _ = c.Write(b) // of the unread more than there is room for
		fed.Done()
		_, _ = c.Read(b)
	}))
	r := start(t, modes[1], set)
	before := heapInUse()
	f := r.framer(t)
	if err := f.fr.WriteWindowUpdate(0, 1<<30); err != nil {
		t.Fatal(err)
	}
	go func() { // beside the reading of what comes
		for i := range uint32(tunnels) {
			_ = f.tryHeaders(2*i+1, false, nil, ":method", "CONNECT", ":scheme", "", ":path", "", ":authority", "target.test:443")
			if i >= unread {
				_ = f.fr.WriteWindowUpdate(2*i+1, 1<<20)
			}
		}
	}()
	got := map[uint32]int{}
	for whole := 0; whole < tunnels-unread; {
		fr, err := f.fr.ReadFrame()
		if err != nil {
			t.Fatalf("%d tunnels were whole: %v", whole, err)
		}
		d, ok := fr.(*xhttp2.DataFrame)
		if !ok {
			continue
		}
		if got[d.StreamID] += len(d.Data()); got[d.StreamID] == size {
			whole++
		}
	}
	if grown := heapInUse() - before; grown > 160<<20 { // of which the handlers hold 100 KiB for each tunnel
		t.Errorf("%d MiB for %d tunnels", grown>>20, tunnels)
	}
}

// What a client sends into tunnels that nobody reads takes nothing from the others, nor more memory than their windows.
func TestTunnelsNotRead(t *testing.T) { // not in parallel: it measures the heap
	const stalled = 500
	end := make(chan struct{})
	turns := make(chan int, 1) // each tunnel's number: the client sees its head before its handler goes on
	set := connecting(taken(func(c conn.Conn) {
		if <-turns < stalled {
			<-end
			return
		}
		echoTunnel(c)
	}))
	r := start(t, modes[1], set)
	t.Cleanup(func() { close(end) })
	before := heapInUse()
	f := r.framer(t, xhttp2.Setting{ID: xhttp2.SettingInitialWindowSize, Val: 1 << 20})
	piece := strings.Repeat("x", 16<<10)
	for i := range uint32(stalled) {
		turns <- int(i)
		f.tunnel(2*i + 1)
		f.want(fmt.Sprintf("HEADERS %d 200", 2*i+1))
		for range 4 {
			f.data(2*i+1, false, piece)
		}
	}
	last := uint32(2*stalled + 1)
	turns <- stalled
	f.tunnel(last)
	f.want(fmt.Sprintf("HEADERS %d 200", last))
	if err := f.fr.WriteWindowUpdate(0, 1<<30); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		f.data(last, false, piece)
		for n := 0; n < len(piece); {
			got, ok := strings.CutPrefix(f.next(), fmt.Sprintf("DATA %d ", last))
			if !ok {
				t.Fatalf("got %.40q", got)
			}
			n += len(got)
		}
	}
	if grown := heapInUse() - before; grown > 48<<20 { // 32 MiB have been sent
		t.Errorf("%d MiB for %d tunnels", grown>>20, stalled)
	}
	f.data(1, false, "!")
	f.want("RST_STREAM 1 FLOW_CONTROL_ERROR")
}

// KF_H2G_06: extended CONNECT is announced, and works on every stream of a connection.
func TestKF_H2G_06_ExtendedConnect(t *testing.T) {
	var paths sync.Map
	echo := taken(echoTunnel)
	set := settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		q := &x.Request
		paths.Store(string(q.Target), fmt.Sprintf("%s %s %s %d", q.Method, q.Upgrade, q.Host, q.ContentLength))
		return echo.Serve(x)
	}))
	r := start(t, modes[1], set)
	f := r.framer(t)
	fr, err := f.fr.ReadFrame()
	if s, ok := fr.(*xhttp2.SettingsFrame); err != nil || !ok {
		t.Fatal(fr, err)
	} else if v, ok := s.Value(xhttp2.SettingEnableConnectProtocol); !ok || v != 1 {
		t.Error("extended CONNECT is not announced")
	}
	for i := range uint32(3) {
		id, path := 2*i+1, fmt.Sprintf("/chat/%d?q", i)
		f.headers(id, false, []string{":protocol", "websocket"}, ":method", "CONNECT", ":path", path)
		f.want(fmt.Sprintf("HEADERS %d 200", id))
		f.data(id, false, "frame")
		f.want(fmt.Sprintf("DATA %d frame", id))
		if got, _ := paths.Load(path); got != "CONNECT websocket h2.test 0" {
			t.Errorf("request %q", got)
		}
	}
	// A window larger than a tunnel's has been granted at first; it is not filled up again before it has become one.
	big := strings.Repeat("x", 16<<10)
	for range 32 {
		f.data(1, false, big)
		for n := 0; n < len(big); {
			n += len(strings.TrimPrefix(f.next(), "DATA 1 "))
			_ = f.fr.WriteWindowUpdate(1, 16<<10)
			_ = f.fr.WriteWindowUpdate(0, 16<<10)
		}
	}
}

func TestConnectHeads(t *testing.T) {
	plain := []string{":method", "CONNECT", ":scheme", "", ":path", ""}
	extended := []string{":method", "CONNECT"}
	tests := []struct {
		name    string
		connect bool
		fields  []string
		pseudo  []string
		want    string
	}{
		{"not offered", false, nil, plain, "HEADERS 1 501"},
		{"offered", true, nil, plain, "HEADERS 1 200"},
		{"with a path", true, nil, []string{":method", "CONNECT", ":scheme", ""}, "RST_STREAM 1 PROTOCOL_ERROR"},
		{"without an authority", true, nil, append(plain, ":authority", ""), "RST_STREAM 1 PROTOCOL_ERROR"},
		{"with a length", true, []string{"content-length", "0"}, plain, "HEADERS 1 400"},
		{"with user information", true, nil, append(plain, ":authority", "u@h:1"), "RST_STREAM 1 PROTOCOL_ERROR"},
		{"websocket", false, []string{":protocol", "websocket"}, extended, "HEADERS 1 200"},
		{"websocket on an entrypoint for tunnels", true, []string{":protocol", "websocket"}, extended, "HEADERS 1 501"},
		{"another protocol", false, []string{":protocol", "connect-udp"}, extended, "HEADERS 1 501"},
		{"no protocol", false, []string{":protocol", ""}, extended, "HEADERS 1 400"},
		{"protocol that is no token", false, []string{":protocol", "a b"}, extended, "HEADERS 1 400"},
		{"protocol twice", false, []string{":protocol", "websocket", ":protocol", "websocket"}, extended, "RST_STREAM 1 PROTOCOL_ERROR"},
		{"protocol behind fields", false, []string{"a", "b", ":protocol", "websocket"}, extended, "RST_STREAM 1 PROTOCOL_ERROR"},
		{"protocol of another method", false, []string{":protocol", "websocket"}, nil, "RST_STREAM 1 PROTOCOL_ERROR"},
		{"protocol without a path", false, []string{":protocol", "websocket"}, append(extended, ":path", ""), "RST_STREAM 1 PROTOCOL_ERROR"},
		{"protocol without a scheme", false, []string{":protocol", "websocket"}, append(extended, ":scheme", ""), "RST_STREAM 1 PROTOCOL_ERROR"},
		{"protocol with a relative path", false, []string{":protocol", "websocket"}, append(extended, ":path", "a"), "RST_STREAM 1 PROTOCOL_ERROR"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			set := settings(taken(echoTunnel))
			set.Connect = tt.connect
			f := start(t, modes[1], set).framer(t)
			f.headers(1, false, tt.fields, tt.pseudo...)
			f.want(tt.want)
		})
	}
}

// A drain lets a tunnel run; its deadline ends it.
func TestTunnelForced(t *testing.T) {
	result := make(chan error, 1)
	r := start(t, modes[1], connecting(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		return taken(func(c conn.Conn) {
			x.Guard.Arm(conn.InterrupterOf(c), 0)
			_, err := io.Copy(c, c)
			x.Guard.Disarm()
			result <- err
		}).Serve(x)
	})))
	f := r.framer(t)
	f.tunnel(1)
	f.want("HEADERS 1 200")
	r.live.Drain(drain.Prompt)
	f.want(announcement, "GOAWAY 1 NO_ERROR")
	f.data(1, false, "still")
	f.want("DATA 1 still")
	r.live.Force()
	if err := within(t, "the end", result); err == nil {
		t.Error("no error")
	}
}
