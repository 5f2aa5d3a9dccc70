package telemetry_test

import (
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// client is the client's end of an exchange that takes everything.
type client struct{ exchange.Downstream }

func (client) SendHead(*exchange.Exchange, []byte, bool) error { return nil }
func (client) SendBody(*exchange.Exchange, []byte, bool) error { return nil }
func (client) Abort()                                          {}

// begin starts an exchange from the given client port.
func begin(port uint16) *exchange.Exchange {
	x := new(exchange.Exchange)
	restart(x, port)
	return x
}

func restart(x *exchange.Exchange, port uint16) {
	info := &conn.Info{Entrypoint: "web", Remote: netip.AddrPortFrom(netip.MustParseAddr("192.0.2.7"), port)}
	x.Begin(client{}, &conn.Alarm{}, info, time.Now())
}
