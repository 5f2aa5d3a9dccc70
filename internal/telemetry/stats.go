package telemetry

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

// Counters that every exchange touches are split over a few cache lines, so that two processors do not fight for
// one. The part is chosen by the client's port: constant for a connection, spread over connections.
const shards = 4

func shardOf(x *exchange.Exchange) uint16 {
	// Clients take every other port, so the lowest bit says nothing.
	return x.Record.Peer.Port() >> 1 % shards
}

// bucketBounds are the upper bounds of both histograms, in seconds; +Inf follows.
var bucketBounds = [...]float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600}

// bucketLimits are the same bounds as durations.
var bucketLimits = func() (d [len(bucketBounds)]time.Duration) {
	for i, b := range bucketBounds {
		d[i] = time.Duration(b * float64(time.Second))
	}
	return d
}()

// bucket returns the index of the first bucket that holds d.
func bucket(d time.Duration) int {
	lo, hi := 0, len(bucketLimits)
	for lo < hi {
		if mid := (lo + hi) / 2; d <= bucketLimits[mid] {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// histogram counts durations in the fixed buckets. The sum is kept in microseconds: in nanoseconds ten thousand
// concurrent streams would overflow it within a month.
type histogram struct {
	buckets [len(bucketBounds) + 1]atomic.Uint64
	micros  atomic.Uint64
}

func (h *histogram) observe(d time.Duration) {
	d = max(d, 0)
	h.buckets[bucket(d)].Add(1)
	h.micros.Add(uint64(d.Microseconds()))
}

// stamp is the time of the last observation, in Unix milliseconds; 0 none. Writes within the same millisecond are
// left out, which keeps the cache line shared.
type stamp struct{ ms atomic.Int64 }

func (s *stamp) set(at time.Time) {
	if ms := at.UnixMilli(); s.ms.Load() < ms {
		s.ms.Store(ms)
	}
}

// base are the counters over all exchanges. Requests are the sum of the classes, so that both always agree.
type base struct {
	classes [6]atomic.Uint64 // by first digit of the status; 0 for no status at all
	bytes   atomic.Uint64
	_       [72]byte
}

// routerStats are the counters of one router.
type routerStats struct {
	shards [shards]struct {
		requests, errors, micros atomic.Uint64
		_                        [40]byte
	}
}

func (r *routerStats) observe(x *exchange.Exchange) {
	s := &r.shards[shardOf(x)]
	s.requests.Add(1)
	if failed(x) {
		s.errors.Add(1)
	}
	until := x.Record.HeadAt
	if until == 0 {
		until = x.Record.Duration
	}
	s.micros.Add(uint64(max(until, 0).Microseconds()))
}

// serviceStats are the counters of one service. Requests are the sum of the duration's buckets.
type serviceStats struct {
	shards [shards]struct {
		duration, ttft histogram
		errors         atomic.Uint64
		active         atomic.Int64
		_              [32]byte
	}
	lastDuration stamp
	_            [56]byte
	lastTTFT     stamp
	_            [56]byte
	sessions     sessionStats
}

// sessionStats are the counters of a service's WebSocket sessions, which begin too seldom to be split.
type sessionStats struct {
	open     atomic.Int64
	outcomes [exchange.Outcomes]atomic.Uint64
	in, out  atomic.Uint64 // bytes
}

// end counts a session that has ended.
func (s *sessionStats) end(r *exchange.Record) {
	s.outcomes[r.Outcome].Add(1)
	s.in.Add(uint64(r.BytesIn))
	s.out.Add(uint64(r.BytesOut))
	s.open.Add(-1)
}

// used reports whether there was a session: services without one have no series of them.
func (s *sessionStats) used() bool {
	n := uint64(s.open.Load())
	for i := range s.outcomes {
		n |= s.outcomes[i].Load()
	}
	return n != 0
}

// backendStats are the counters of one backend.
type backendStats struct{ requests atomic.Uint64 }

// middlewareStats are the counters of one middleware.
type middlewareStats struct{ invocations atomic.Uint64 }

// BackendID is the opaque identity of a configured backend in metrics: derived from its place in the configuration,
// never from its address. scope is the service name, or service/revision; index counts the servers of that pool.
func BackendID(scope string, index int) string {
	h := sha256.New()
	h.Write([]byte("a3s-gateway-backend-slot-v1\x00" + scope + "\x00"))
	h.Write(binary.BigEndian.AppendUint64(nil, uint64(index)))
	return "b_" + hex.EncodeToString(h.Sum(nil))
}

// StatusClientClosed is what logs and counters show as the status of an exchange whose client left before any
// answer: no status was sent, and operators know this number from other proxies.
const StatusClientClosed = 499

// statusOf is the status as logs and counters show it; 0 when there was none.
func statusOf(x *exchange.Exchange) int {
	if x.Record.Status == 0 && x.Record.Outcome == exchange.OutcomeDisconnected && !x.Request.Protocol.Streams() {
		return StatusClientClosed
	}
	return x.Record.Status
}

// failed reports whether an exchange counts as an error: by its status, of which none at all is one, since the exchange
// was cut off before; a connection or session by its outcome.
func failed(x *exchange.Exchange) bool {
	if x.Request.Protocol.Streams() {
		return x.Record.Outcome != exchange.OutcomeOK
	}
	status := statusOf(x)
	return status >= 400 || status == 0
}

// connStats are the counters of the connections of one tcp entrypoint, or the sessions of a udp one.
type connStats struct {
	outcomes [exchange.Outcomes]atomic.Uint64
	in, out  atomic.Uint64 // bytes
}
