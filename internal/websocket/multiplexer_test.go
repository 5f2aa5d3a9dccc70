package websocket_test

import (
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/websocket"
)

type panics struct{}

func (panics) ResponseHead(*exchange.Exchange) { panic("of a hook") }

// A panic leaves no alarm behind that would end what the connection serves next.
func TestMultiplexerPanics(t *testing.T) {
	x := request(exchange.HTTP11, "GET", 0, "Connection: upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
	x.OnHead(panics{})
	m := websocket.NewMultiplexer(websocket.NewHub(), "s", websocket.Bounds{Idle: time.Hour}, nil)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("no panic")
			}
		}()
		_ = m.Serve(x)
	}()
	if x.Guard.Ring(conn.CauseDrain); x.Guard.Cause() != conn.CauseNone {
		t.Error("the alarm is still armed")
	}
}
