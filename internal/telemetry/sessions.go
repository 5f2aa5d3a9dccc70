package telemetry

import (
	"strconv"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

var (
	descUDPSessions = desc("udp_sessions_total", "Sessions of a udp entrypoint that have ended, by outcome.", "entrypoint", "outcome")
	descUDPBytes    = desc("udp_bytes_total", "Bytes of ended sessions of a udp entrypoint: in from clients, out to them.", "entrypoint", "direction")
	descDatagrams   = desc("udp_datagrams_total", "Datagrams passed on by a udp entrypoint: in from clients, out to them.", "entrypoint", "direction")
	descDropped     = desc("udp_dropped_datagrams_total", "Datagrams of a udp entrypoint that were not passed on, by reason.", "entrypoint", "reason")
)

// DatagramCounts are the datagrams of one udp entrypoint.
type DatagramCounts struct {
	In, Out uint64
	// Dropped are those not passed on, by reason: a fixed set of words.
	Dropped map[string]uint64
}

// datagrams renders what udp entrypoints have passed on and dropped.
func (s *scrape) datagrams(m *Metrics, t Topology) {
	counts := make(map[string]DatagramCounts)
	if s.src.Datagrams != nil {
		s.src.Datagrams(func(entrypoint string, c DatagramCounts) { counts[entrypoint] = c })
	}
	for _, name := range t.UDP {
		v := m.sessions[name]
		for o := exchange.OutcomeOK; o < exchange.Outcomes; o++ {
			if o != exchange.OutcomeUpgraded {
				s.counter(descUDPSessions, v.outcomes[o].Load(), name, o.String())
			}
		}
		s.counter(descUDPBytes, v.in.Load(), name, "in")
		s.counter(descUDPBytes, v.out.Load(), name, "out")
		c := counts[name]
		s.counter(descDatagrams, c.In, name, "in")
		s.counter(descDatagrams, c.Out, name, "out")
		for reason, n := range c.Dropped {
			s.counter(descDropped, n, name, reason)
		}
	}
}

// appendDatagrams appends the members of a session of datagrams.
func appendDatagrams(b []byte, x *exchange.Exchange) []byte {
	if x.Request.Protocol != exchange.UDP {
		return b
	}
	b = append(b, `,"datagrams_in":`...)
	b = strconv.AppendInt(b, x.Record.DatagramsIn, 10)
	b = append(b, `,"datagrams_out":`...)
	return strconv.AppendInt(b, x.Record.DatagramsOut, 10)
}
