package http2

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/net/http2"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// onSettings takes the server's settings over (RFC 9113 §6.5).
func (c *ClientConn) onSettings(f *frame) *connError {
	ack, err := settingsFrame(f)
	if ack || err != nil {
		return err
	}
	c.reader.known = true
	c.mu.Lock()
	defer c.mu.Unlock()
	for p := f.payload; len(p) > 0; p = p[6:] {
		s := http2.Setting{ID: http2.SettingID(binary.BigEndian.Uint16(p)), Val: binary.BigEndian.Uint32(p[2:])}
		if err := checkSetting(s); err != nil {
			return err
		}
		if err := c.setting(s); err != nil {
			return err
		}
	}
	o, err := c.control()
	if err != nil {
		return err
	}
	o.b = appendFrameHead(o.b, 0, http2.FrameSettings, flagAck, 0)
	c.flush()
	if !c.known {
		c.known = true
		close(c.ready)
	}
	return nil
}

// setting takes one setting over. The lock is held.
func (c *ClientConn) setting(s http2.Setting) *connError {
	switch s.ID {
	case http2.SettingEnablePush:
		if s.Val != 0 { // RFC 9113 §6.5.2
			return protocolError("a server that enables push")
		}
	case http2.SettingMaxConcurrentStreams:
		c.peerMax = int(min(s.Val, uint32(c.set.MaxStreams)))
	case http2.SettingInitialWindowSize:
		return c.setWindow(int64(s.Val), c.flows)
	case http2.SettingEnableConnectProtocol:
		if c.extended && s.Val == 0 { // RFC 8441 §3
			return protocolError("extended CONNECT taken back")
		}
		c.extended = s.Val == 1
	}
	return nil
}

// flows are the open streams as flow control sees them. The lock is held.
func (c *ClientConn) flows(yield func(*flow) bool) {
	for _, s := range c.streams {
		if !yield(&s.flow) {
			return
		}
	}
}

// onPing answers a PING (RFC 9113 §6.7). The answer to ours is a sign of life like every other frame.
func (c *ClientConn) onPing(f *frame) *connError {
	if err := pingFrame(f); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.flags&flagAck != 0 {
		c.vouched = time.Now()
		return nil
	}
	return c.pong(f)
}

// onGoAway takes note of the last stream that the server serves: those behind it were not processed (RFC 9113 §6.8).
func (c *ClientConn) onGoAway(f *frame) *connError {
	if err := onGoAway(f); err != nil {
		return err
	}
	last := binary.BigEndian.Uint32(f.payload) & maxStreamID
	code := http2.ErrCode(binary.BigEndian.Uint32(f.payload[4:]))
	c.mu.Lock()
	defer c.mu.Unlock()
	if last > c.lastID {
		return protocolError("GOAWAY with a higher stream than before")
	}
	c.leaving, c.lastID = true, last
	for id, s := range c.streams {
		if id > last && !s.closed {
			s.closed = true
			s.fail(fmt.Errorf("%w: GOAWAY %v", exchange.ErrUnprocessed, code))
			c.wake(s)
		}
	}
	c.settle()
	return nil
}
