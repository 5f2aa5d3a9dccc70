package telemetry_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/telemetry"
)

func TestBackendID(t *testing.T) {
	for _, c := range []struct {
		scope string
		index int
		want  string
	}{
		{"api", 0, "b_40fb19b9290288c783fca4b21107d95583c5332dbaaeac6f590bc2c4064eeb8c"},
		{"api/v1", 0, "b_f4d12e692cb5366c200babc5837a4db3d6b448a9b4630416a78875c6017e07b5"},
	} {
		if got := telemetry.BackendID(c.scope, c.index); got != c.want {
			t.Errorf("BackendID(%q, %d) = %s, want %s", c.scope, c.index, got, c.want)
		}
	}
	if telemetry.BackendID("api", 0) == telemetry.BackendID("api", 1) {
		t.Error("two slots have one id")
	}
}

// topology names r routers r0…, s services s0… with b backends each, and m middlewares.
func topology(r, s, b, m int) telemetry.Topology {
	t := telemetry.Topology{Metrics: true, Entrypoints: []string{"web", "api"}}
	for i := range r {
		t.Routers = append(t.Routers, fmt.Sprint("r", i))
	}
	for i := range s {
		svc := telemetry.ServiceTopology{Name: fmt.Sprint("s", i)}
		for j := range b {
			svc.Backends = append(svc.Backends, telemetry.BackendID(svc.Name, j))
		}
		t.Services = append(t.Services, svc)
	}
	for i := range m {
		t.Middlewares = append(t.Middlewares, fmt.Sprint("m", i))
	}
	return t
}

// samples gathers the gateway's own samples as name{label="value",…} -> value; histograms as _count, _sum, _bucket.
func samples(t *testing.T, m *telemetry.Metrics) map[string]float64 {
	t.Helper()
	families, err := m.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]float64)
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "gateway_") {
			continue
		}
		for _, s := range f.GetMetric() {
			var labels []string
			for _, l := range s.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			with := func(suffix string, more ...string) string {
				return fmt.Sprintf("%s%s{%s}", f.GetName(), suffix, strings.Join(append(slices.Clone(labels), more...), ","))
			}
			switch h := s.GetHistogram(); {
			case h != nil:
				all[with("_count")], all[with("_sum")] = float64(h.GetSampleCount()), h.GetSampleSum()
				for _, b := range h.GetBucket() {
					all[with("_bucket", fmt.Sprintf("le=%q", fmt.Sprint(b.GetUpperBound())))] = float64(b.GetCumulativeCount())
				}
				all[with("_bucket", `le="+Inf"`)] = float64(h.GetSampleCount())
			case s.GetCounter() != nil:
				all[with("")] = s.GetCounter().GetValue()
			default:
				all[with("")] = s.GetGauge().GetValue()
			}
		}
	}
	return all
}

func want(t *testing.T, got map[string]float64, expected map[string]float64) {
	t.Helper()
	for name, v := range expected {
		if g, ok := got[name]; !ok || g != v {
			t.Errorf("%s = %v (present: %v), want %v", name, g, ok, v)
		}
	}
}

// sources reports for every name of the topology, and for names that it lacks.
func sources(top telemetry.Topology) telemetry.Sources {
	return telemetry.Sources{
		Connections: func(report func(string, int64)) {
			report("web", 3)
			report("gone", 4)
		},
		Backends: func(report func(string, bool, int64)) {
			for _, s := range top.Services {
				for i, id := range s.Backends {
					report(id, i != 0, int64(i))
				}
			}
			report("b_unknown", true, 1)
		},
		Upstream: func(report func(string, int64, int64)) {
			report("s0", 2, 1)
			report("s0", 3, 0)
			report("unknown", 1, 1)
		},
		QueueDepth: func(report func(string, int64)) { report("s0", 6) },
		Certificates: func(report func(string, time.Time)) {
			report("web", time.Unix(2000, 0))
			report("web", time.Unix(1000, 0))
			report("api", time.Unix(3000, 0))
			report("gone", time.Unix(1, 0))
		},
		Generations:      func() int64 { return 2 },
		AccessLogDropped: func() uint64 { return 9 },
	}
}

func TestSeriesBudget(t *testing.T) {
	top := topology(3, 2, 4, 2)
	if got, want := top.Budget(), 7+3*3+50*2+3*8+2+(5+2*2+2*2); got != want {
		t.Fatalf("Budget() = %d, want %d", got, want)
	}
	m := telemetry.NewMetrics()
	m.Retain(top)
	m.SetSources(sources(top))
	var meters []*telemetry.Meter
	for i := range 3 {
		meters = append(meters, m.Meter(telemetry.Path{
			Router: fmt.Sprint("r", i), Service: top.Services[i%2], Middlewares: top.Middlewares,
		}))
	}
	meters = append(meters, m.Meter(telemetry.Path{}))
	rnd := rand.New(rand.NewPCG(1, 2))
	text := func() []byte {
		b := make([]byte, rnd.IntN(40))
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		return b
	}
	for range 10_000 {
		x := begin(uint16(rnd.Uint32()))
		x.Request.Host, x.Request.Path, x.Request.Method = text(), text(), text()
		meter := meters[rnd.IntN(len(meters))]
		x.Record.AddAttempt(exchange.Attempt{ID: telemetry.BackendID(fmt.Sprint("s", rnd.IntN(4)), rnd.IntN(9)), Backend: string(text())})
		if rnd.IntN(2) == 0 {
			meter.Enter(x)
		}
		x.Response.Status = rnd.IntN(900)
		if err := x.Send(text(), true); err != nil {
			t.Fatal(err)
		}
		x.End(exchange.OutcomeOK)
		meter.End(x)
	}
	got := samples(t, m)
	if len(got) > top.Budget() {
		t.Errorf("%d series, budget %d", len(got), top.Budget())
	}
	// With every source present and both signals observed the budget is exactly what is rendered.
	if len(got) != top.Budget() {
		t.Errorf("%d series, the documented budget is %d: say so in Budget", len(got), top.Budget())
	}
	want(t, got, map[string]float64{"gateway_requests_total{}": 10_000})
	for name := range got {
		if strings.Contains(name, "unknown") || strings.Contains(name, "gone") || strings.Contains(name, "http") {
			t.Errorf("%s is not from the topology", name)
		}
	}
}

func TestExchangeIsCounted(t *testing.T) {
	top := topology(1, 1, 2, 3)
	m := telemetry.NewMetrics()
	m.Retain(top)
	m.SetSources(sources(top))
	meter := m.Meter(telemetry.Path{Router: "r0", Service: top.Services[0], Middlewares: top.Middlewares})

	x := begin(40000)
	meter.Enter(x)
	want(t, samples(t, m), map[string]float64{
		`gateway_service_active_requests{service="s0"}`:    1,
		`gateway_requests_total{}`:                         0,
		`gateway_service_ttft_seconds_count{service="s0"}`: 0,
	})
	x.Record.AddAttempt(exchange.Attempt{ID: top.Services[0].Backends[0]})
	x.Record.AddAttempt(exchange.Attempt{ID: top.Services[0].Backends[1]})
	x.Response.Status = 502
	for _, part := range []string{"", "hello", " world"} {
		if err := x.Send([]byte(part), false); err != nil {
			t.Fatal(err)
		}
	}
	// The time to the first byte is known while the stream goes on.
	got := samples(t, m)
	want(t, got, map[string]float64{
		`gateway_service_ttft_seconds_count{service="s0"}`:                                               1,
		`gateway_service_request_duration_seconds_count{service="s0"}`:                                   0,
		`gateway_service_telemetry_age_seconds{service="s0",signal="queue_depth"}`:                       0,
		`gateway_service_queue_depth{service="s0"}`:                                                      6,
		`gateway_backend_healthy{backend_id="` + top.Services[0].Backends[0] + `",service="s0"}`:         0,
		`gateway_backend_active_requests{backend_id="` + top.Services[0].Backends[1] + `",service="s0"}`: 1,
	})
	if _, ok := got[`gateway_service_telemetry_age_seconds{service="s0",signal="request_latency"}`]; ok {
		t.Error("request_latency has an age before it was observed")
	}
	if _, ok := got[`gateway_service_telemetry_age_seconds{service="s0",signal="ttft"}`]; !ok {
		t.Error("ttft has no age although it was observed")
	}
	x.End(exchange.OutcomeFailed)
	x.Record.HeadAt, x.Record.Duration = 1500*time.Microsecond, 26*time.Millisecond
	meter.End(x)

	answered := begin(40002) // the second of three middlewares answers: the third has not run
	answered.Record.Middleware, answered.Response.Status = "m1", 429
	if err := answered.Send(nil, true); err != nil {
		t.Fatal(err)
	}
	answered.End(exchange.OutcomeRejected)
	answered.Record.HeadAt = 500 * time.Microsecond
	meter.End(answered)

	left := begin(40004) // leaves before any answer
	left.End(exchange.OutcomeDisconnected)
	left.Record.Duration = time.Millisecond
	m.Meter(telemetry.Path{}).End(left)

	want(t, samples(t, m), map[string]float64{
		`gateway_requests_total{}`:                                                         3,
		`gateway_responses_total{status_class="1xx"}`:                                      0,
		`gateway_responses_total{status_class="4xx"}`:                                      2,
		`gateway_responses_total{status_class="5xx"}`:                                      1,
		`gateway_response_bytes_total{}`:                                                   11,
		`gateway_active_connections{}`:                                                     7,
		`gateway_open_connections{entrypoint="web"}`:                                       3,
		`gateway_open_connections{entrypoint="api"}`:                                       0,
		`gateway_router_requests_total{router="r0"}`:                                       2,
		`gateway_router_errors_total{router="r0"}`:                                         2,
		`gateway_service_requests_total{service="s0"}`:                                     1,
		`gateway_service_errors_total{service="s0"}`:                                       1,
		`gateway_service_active_requests{service="s0"}`:                                    0,
		`gateway_router_latency_microseconds_total{router="r0"}`:                           2000,
		`gateway_middleware_invocations_total{middleware="m0"}`:                            2,
		`gateway_middleware_invocations_total{middleware="m1"}`:                            2,
		`gateway_middleware_invocations_total{middleware="m2"}`:                            1,
		`gateway_backend_requests_total{backend_id="` + top.Services[0].Backends[0] + `"}`: 1,
		`gateway_backend_requests_total{backend_id="` + top.Services[0].Backends[1] + `"}`: 1,
		`gateway_service_request_duration_seconds_bucket{service="s0",le="0.025"}`:         0,
		`gateway_service_request_duration_seconds_bucket{service="s0",le="0.05"}`:          1,
		`gateway_service_request_duration_seconds_sum{service="s0"}`:                       0.026,
		`gateway_upstream_connections{service="s0",state="idle"}`:                          5,
		`gateway_upstream_connections{service="s0",state="active"}`:                        1,
		`gateway_tls_certificate_expiry_timestamp_seconds{entrypoint="web"}`:               1000,
		`gateway_generations{}`:                                                            2,
		`gateway_access_log_dropped_total{}`:                                               9,
	})
	if m.Requests() != 3 {
		t.Errorf("Requests() = %d, want 3", m.Requests())
	}
}

func TestBuckets(t *testing.T) {
	top := topology(1, 1, 1, 0)
	bounds := []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 600}
	for i, b := range append(bounds, 601) {
		m := telemetry.NewMetrics()
		m.Retain(top)
		meter := m.Meter(telemetry.Path{Router: "r0", Service: top.Services[0]})
		x := begin(1)
		meter.Enter(x)
		x.End(exchange.OutcomeOK)
		x.Record.Duration = time.Duration(b * float64(time.Second)) // a bound belongs to its own bucket
		meter.End(x)
		got := samples(t, m)
		for j, le := range bounds {
			v := 0.0
			if j >= i {
				v = 1
			}
			want(t, got, map[string]float64{fmt.Sprintf(`gateway_service_request_duration_seconds_bucket{service="s0",le="%v"}`, le): v})
		}
		want(t, got, map[string]float64{`gateway_service_request_duration_seconds_bucket{service="s0",le="+Inf"}`: 1})
	}
}

func TestReload(t *testing.T) {
	m := telemetry.NewMetrics()
	top := topology(2, 2, 1, 1)
	m.Retain(top)
	count := func(meter *telemetry.Meter) {
		x := begin(1)
		meter.Enter(x)
		x.Response.Status = 200
		if err := x.Send(nil, true); err != nil {
			t.Fatal(err)
		}
		x.End(exchange.OutcomeOK)
		meter.End(x)
	}
	old := m.Meter(telemetry.Path{Router: "r0", Service: top.Services[0]})
	gone := m.Meter(telemetry.Path{Router: "r1", Service: top.Services[1]})
	count(old)
	count(gone)

	next := topology(1, 1, 1, 0)
	next.Routers = append(next.Routers, "new")
	fresh := m.Meter(telemetry.Path{Router: "new", Service: next.Services[0]}) // prepared
	if _, ok := samples(t, m)[`gateway_router_requests_total{router="new"}`]; ok {
		t.Error("a prepared configuration is rendered before it is the current one")
	}
	m.Retain(next)
	m.Reloaded(true)
	m.Reloaded(false)
	m.Reloaded(true)
	count(fresh)
	count(old)  // a late exchange of the old generation
	count(gone) // and one whose names are gone
	got := samples(t, m)
	want(t, got, map[string]float64{
		`gateway_router_requests_total{router="r0"}`:     2,
		`gateway_router_requests_total{router="new"}`:    1,
		`gateway_service_requests_total{service="s0"}`:   3,
		`gateway_requests_total{}`:                       5,
		`gateway_config_reloads_total{result="success"}`: 2,
		`gateway_config_reloads_total{result="failure"}`: 1,
	})
	for name := range got {
		if strings.Contains(name, `"r1"`) || strings.Contains(name, `"s1"`) || strings.Contains(name, `"m0"`) {
			t.Errorf("%s is still rendered", name)
		}
	}
	m.Retain(top) // a name that comes back begins anew
	want(t, samples(t, m), map[string]float64{`gateway_router_requests_total{router="r1"}`: 0})
}

func TestMetricsOff(t *testing.T) {
	m := telemetry.NewMetrics()
	top := topology(1, 1, 1, 1)
	top.Metrics = false
	m.Retain(top)
	m.SetSources(sources(top))
	var off *telemetry.Meter
	x := begin(1)
	off.Enter(x)
	if err := x.Send([]byte("x"), true); err != nil {
		t.Fatal(err)
	}
	x.End(exchange.OutcomeOK)
	off.End(x)
	got := samples(t, m)
	want(t, got, map[string]float64{`gateway_requests_total{}`: 0, `gateway_router_requests_total{router="r0"}`: 0})
	for name := range got {
		if strings.HasPrefix(name, "gateway_service_active") || strings.HasPrefix(name, "gateway_backend_healthy") || strings.Contains(name, "seconds_bucket") {
			t.Errorf("%s is rendered with metrics off", name)
		}
	}
}

func TestManyBackends(t *testing.T) {
	top := topology(1, 1, 40, 0)
	m := telemetry.NewMetrics()
	m.Retain(top)
	meter := m.Meter(telemetry.Path{Router: "r0", Service: top.Services[0]})
	for i, id := range top.Services[0].Backends {
		for range i {
			x := begin(1)
			x.Record.AddAttempt(exchange.Attempt{ID: id})
			x.End(exchange.OutcomeOK)
			meter.End(x)
		}
	}
	got := samples(t, m)
	for i, id := range top.Services[0].Backends {
		want(t, got, map[string]float64{`gateway_backend_requests_total{backend_id="` + id + `"}`: float64(i)})
	}
}

func TestExposition(t *testing.T) {
	top := topology(2, 2, 2, 1)
	top.Routers = append(top.Routers, "a\"b\\c\nd")
	m := telemetry.NewMetrics()
	m.Retain(top)
	m.SetSources(sources(top))
	h := m.Handler(slog.New(slog.DiscardHandler))
	scrape := func(header ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", "/metrics", nil)
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != 200 {
			t.Fatalf("status %d: %s", w.Code, w.Body)
		}
		return w
	}
	plain := scrape()
	if ct := plain.Header().Get("Content-Type"); !strings.HasPrefix(ct, "text/plain; version=0.0.4") {
		t.Errorf("content type %q", ct)
	}
	text := plain.Body.String()
	if !strings.Contains(text, `gateway_router_requests_total{router="a\"b\\c\nd"} 0`) {
		t.Error("a label value is not escaped as it must be")
	}
	seen, current := make(map[string]bool), ""
	for line := range strings.Lines(text) { // every family is one group under one TYPE line
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok {
			current, _, _ = strings.Cut(name, " ")
			if seen[current] {
				t.Errorf("family %s has two groups", current)
			}
			seen[current] = true
		} else if !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, current) {
			t.Errorf("%q stands below %s", line, current)
		}
	}
	for _, name := range []string{"go_goroutines", "process_resident_memory_bytes", "gateway_service_ttft_seconds"} {
		if !seen[name] {
			t.Errorf("%s is missing", name)
		}
	}
	open := scrape("Accept", "application/openmetrics-text; version=1.0.0")
	if ct := open.Header().Get("Content-Type"); !strings.HasPrefix(ct, "application/openmetrics-text") {
		t.Errorf("content type %q", ct)
	}
	if !strings.HasSuffix(open.Body.String(), "# EOF\n") {
		t.Error("OpenMetrics text has no end")
	}
	packed := scrape("Accept-Encoding", "gzip")
	z, err := gzip.NewReader(packed.Body)
	if err != nil {
		t.Fatal(err)
	}
	if unpacked, err := io.ReadAll(z); err != nil || !strings.Contains(string(unpacked), "gateway_requests_total 0") {
		t.Errorf("unpacked text lacks a sample (%v)", err)
	}
}

func TestExpositionLint(t *testing.T) {
	top := topology(1, 1, 1, 1)
	m := telemetry.NewMetrics()
	m.Retain(top)
	m.SetSources(sources(top))
	problems, err := testutil.GatherAndLint(m.Gatherer())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		// The name is part of the contract with existing dashboards.
		if p.Metric != "gateway_router_latency_microseconds_total" {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}
