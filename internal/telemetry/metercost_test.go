package telemetry_test

import (
	"sync"
	"testing"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/telemetry"
)

func TestConcurrentCounting(t *testing.T) {
	top := topology(1, 1, 1, 1)
	m := telemetry.NewMetrics()
	m.Retain(top)
	meter := m.Meter(telemetry.Path{Router: "r0", Service: top.Services[0], Middlewares: top.Middlewares})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			x := new(exchange.Exchange)
			for range 500 {
				restart(x, uint16(30000+2*g))
				meter.Enter(x)
				x.Response.Status = 200
				_ = x.Send([]byte("ab"), true)
				x.End(exchange.OutcomeOK)
				meter.End(x)
			}
		})
	}
	for range 20 {
		m.Retain(top)
		samples(t, m)
	}
	wg.Wait()
	want(t, samples(t, m), map[string]float64{
		`gateway_requests_total{}`:                         4000,
		`gateway_response_bytes_total{}`:                   8000,
		`gateway_service_requests_total{service="s0"}`:     4000,
		`gateway_service_active_requests{service="s0"}`:    0,
		`gateway_service_ttft_seconds_count{service="s0"}`: 4000,
	})
}

func TestCountingDoesNotAllocate(t *testing.T) {
	x, meter := measured()
	if n := testing.AllocsPerRun(1000, func() { observe(x, meter) }); n != 0 {
		t.Errorf("%v allocations an exchange, want 0", n)
	}
}

func measured() (*exchange.Exchange, *telemetry.Meter) {
	top := topology(1, 1, 2, 2)
	m := telemetry.NewMetrics()
	m.Retain(top)
	x := begin(40000)
	x.Record.Status, x.Record.BytesOut = 200, 100
	x.Record.AddAttempt(exchange.Attempt{ID: top.Services[0].Backends[1]})
	return x, m.Meter(telemetry.Path{Router: "r0", Service: top.Services[0], Middlewares: top.Middlewares})
}

func observe(x *exchange.Exchange, meter *telemetry.Meter) {
	meter.Enter(x)
	meter.FirstByte(x)
	meter.End(x)
}

func BenchmarkMeter(b *testing.B) {
	x, meter := measured()
	b.ReportAllocs()
	for b.Loop() {
		observe(x, meter)
	}
}

func BenchmarkMeterParallel(b *testing.B) {
	_, meter := measured()
	var mu sync.Mutex
	port := uint16(40000)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		mu.Lock()
		port += 2
		x := begin(port)
		mu.Unlock()
		x.Record.Status, x.Record.BytesOut = 200, 100
		for pb.Next() {
			observe(x, meter)
		}
	})
}
