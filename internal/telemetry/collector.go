package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-proxy/sluice/internal/exchange"
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("gateway_"+name, help, labels, nil)
}

var (
	descRequests    = desc("requests_total", "Exchanges that have ended, whatever their answer.")
	descResponses   = desc("responses_total", "Exchanges by the class of the status sent.", "status_class")
	descBytes       = desc("response_bytes_total", "Response body bytes sent to clients.")
	descConnections = desc("active_connections", "Open connections from clients.")
	descReloads     = desc("config_reloads_total", "Configurations applied or refused after the start.", "result")
	descGenerations = desc("generations", "Configurations in use: the current one, and older ones that still serve exchanges.")
	descLogDropped  = desc("access_log_dropped_total", "Access log entries lost because the output was too slow or failed.")
	descOpen        = desc("open_connections", "Open connections from clients by entrypoint.", "entrypoint")
	descConns       = desc("tcp_connections_total", "Connections of a tcp entrypoint that have ended, by outcome.", "entrypoint", "outcome")
	descConnBytes   = desc("tcp_bytes_total", "Bytes of ended connections of a tcp entrypoint: in from clients, out to them.", "entrypoint", "direction")
	descCertReload  = desc("tls_certificate_reloads_total", "Changed certificate and authority files taken up or refused.", "result")
	descCertIssue   = desc("tls_certificate_renewals_total", "Attempts to have a certificate issued or renewed by ACME.", "result")
	descCertificate = desc("tls_certificate_expiry_timestamp_seconds", "End of validity of the entrypoint's certificate, in Unix time.", "entrypoint")
	descRouter      = desc("router_requests_total", "Exchanges that matched the router.", "router")
	descRouterError = desc("router_errors_total", "Exchanges of the router with a status of 400 or more, or none.", "router")
	descRouterTime  = desc("router_latency_microseconds_total", "Summed time until the response head, in microseconds.", "router")
	descService     = desc("service_requests_total", "Exchanges that the service accepted and that have ended.", "service")
	descServiceErr  = desc("service_errors_total", "Exchanges of the service with a status of 400 or more, or none.", "service")
	descBackend     = desc("backend_requests_total", "Attempts dispatched to the backend.", "backend_id")
	descMiddleware  = desc("middleware_invocations_total", "Exchanges that the middleware has seen.", "middleware")
	descSessions    = desc("websocket_sessions", "Open WebSocket sessions of the service.", "service")
	descSessionEnds = desc("websocket_sessions_total", "WebSocket sessions of the service that have ended, by outcome.", "service", "outcome")
	descSessionByte = desc("websocket_bytes_total", "Bytes of ended WebSocket sessions of the service, frames and all: in from clients, out to them.", "service", "direction")
	descChannels    = desc("websocket_channels", "Named channels with a subscriber.")
	descSubscribed  = desc("websocket_subscriptions", "Subscriptions to named channels.")
	descMessages    = desc("websocket_channel_messages_total", "Messages of named channels by what became of each for each subscriber.", "result")
	descDecisions   = desc("egress_decisions_total", "Decisions about what leaves actors, by where and why.", "entrypoint", "leg", "reason")
	descActors      = desc("egress_actors", "Actors that have tunnels.", "entrypoint")
	descTunnels     = desc("egress_tunnels", "Open tunnels of actors.", "entrypoint")
	descAuditLost   = desc("egress_audit_lost_total", "Lines of the audit log lost because the output was too slow or failed.", "entrypoint")
	descUpstream    = desc("upstream_connections", "Connections to the backends of the service by state.", "service", "state")

	descActive        = desc("service_active_requests", "Exchanges that the service has accepted and that have not ended.", "service")
	descQueue         = desc("service_queue_depth", "Exchanges that wait for the service.", "service")
	descDuration      = desc("service_request_duration_seconds", "Time until the exchange ended.", "service")
	descTTFT          = desc("service_ttft_seconds", "Time until the first response body byte.", "service")
	descBackendActive = desc("backend_active_requests", "Operations in progress at the backend.", "service", "backend_id")
	descHealthy       = desc("backend_healthy", "1 if the backend may be chosen, 0 if not.", "service", "backend_id")
	descObserved      = desc("service_telemetry_observation_timestamp_seconds", "When the signal was last observed, in Unix time.", "service", "signal")
	descAge           = desc("service_telemetry_age_seconds", "Time since the signal was last observed.", "service", "signal")
)

// collector renders a Metrics. It makes values at scrape time only, so that the hot path knows no library.
type collector struct {
	m   *Metrics
	now func() time.Time
}

// Describe announces nothing: which families exist depends on the topology.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// scrape is one collection.
type scrape struct {
	out chan<- prometheus.Metric
	src Sources
	now time.Time
}

// value renders one sample. A label value that the format cannot carry (it was no valid text) leaves it out.
func (s *scrape) value(d *prometheus.Desc, t prometheus.ValueType, v float64, labels ...string) {
	if m, err := prometheus.NewConstMetric(d, t, v, labels...); err == nil {
		s.out <- m
	}
}

func (s *scrape) counter(d *prometheus.Desc, v uint64, labels ...string) {
	s.value(d, prometheus.CounterValue, float64(v), labels...)
}

func (s *scrape) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s.value(d, prometheus.GaugeValue, v, labels...)
}

// Collect renders everything once.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	s := &scrape{out: out, now: c.now()}
	if src := c.m.sources.Load(); src != nil {
		s.src = *src
	}
	// Other parts are asked before the lock is taken: locks are not held across calls out.
	backends, queues := s.backends(), s.queues()

	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	t := c.m.topology
	c.base(s)
	s.connections(t)
	s.egress()
	for _, name := range t.TCP {
		c.m.conns[name].render(s, name)
	}
	s.datagrams(c.m, t)
	for _, name := range t.Routers {
		c.m.routers[name].render(s, name)
	}
	for _, name := range t.Middlewares {
		s.counter(descMiddleware, c.m.middlewares[name].invocations.Load(), name)
	}
	s.upstream(t)
	for _, svc := range t.Services {
		c.m.services[svc.Name].render(s, svc.Name)
		if t.Metrics {
			c.m.services[svc.Name].renderSignals(s, svc.Name, queues[svc.Name])
		}
		for _, id := range svc.Backends {
			s.counter(descBackend, c.m.backends[id].requests.Load(), id)
			if b, ok := backends[id]; ok && t.Metrics {
				s.gauge(descBackendActive, float64(b.active), svc.Name, id)
				s.gauge(descHealthy, b.healthy, svc.Name, id)
			}
		}
	}
}

func (c *collector) base(s *scrape) {
	var classes [6]uint64
	var total, bytes uint64
	for i := range c.m.base {
		b := &c.m.base[i]
		for j := range b.classes {
			n := b.classes[j].Load()
			classes[j] += n
			total += n
		}
		bytes += b.bytes.Load()
	}
	s.counter(descRequests, total)
	for i, name := range []string{"1xx", "2xx", "3xx", "4xx", "5xx"} {
		s.counter(descResponses, classes[i+1], name)
	}
	s.counter(descBytes, bytes)
	s.counter(descReloads, c.m.reloads[0].Load(), "failure")
	s.counter(descReloads, c.m.reloads[1].Load(), "success")
	if s.src.Generations != nil {
		s.gauge(descGenerations, float64(s.src.Generations()))
	}
	if s.src.CertificateChanges != nil {
		reloaded, broken, issued, refused := s.src.CertificateChanges()
		s.counter(descCertReload, broken, "failure")
		s.counter(descCertReload, reloaded, "success")
		s.counter(descCertIssue, refused, "failure")
		s.counter(descCertIssue, issued, "success")
	}
	if s.src.Channels != nil {
		channels, subscriptions, delivered, skipped := s.src.Channels()
		if delivered+skipped > 0 || subscriptions > 0 {
			s.gauge(descChannels, float64(channels))
			s.gauge(descSubscribed, float64(subscriptions))
			s.counter(descMessages, delivered, "delivered")
			s.counter(descMessages, skipped, "skipped")
		}
	}
	s.actors()
	if s.src.AccessLogDropped != nil {
		s.counter(descLogDropped, s.src.AccessLogDropped())
	}
}

// connections renders what is known of entrypoints. The total counts every entrypoint, also one that a reload has
// removed and that still drains.
func (s *scrape) connections(t Topology) {
	var total int64
	open, ends := make(map[string]int64), make(map[string]time.Time)
	if s.src.Connections != nil {
		s.src.Connections(func(name string, n int64) {
			open[name] += n
			total += n
		})
	}
	if s.src.Certificates != nil {
		s.src.Certificates(func(name string, end time.Time) {
			if old, ok := ends[name]; !ok || end.Before(old) {
				ends[name] = end
			}
		})
	}
	s.gauge(descConnections, float64(total))
	for _, name := range t.Entrypoints {
		if s.src.Connections != nil {
			s.gauge(descOpen, float64(open[name]), name)
		}
		if end, ok := ends[name]; ok {
			s.gauge(descCertificate, float64(end.Unix()), name)
		}
	}
}

// egress renders what is known of entrypoints for actors. No label names an actor.
func (s *scrape) egress() {
	if s.src.Decisions != nil {
		s.src.Decisions(func(entrypoint, leg, reason string, n uint64) { s.counter(descDecisions, n, entrypoint, leg, reason) })
	}
	if s.src.Egress != nil {
		s.src.Egress(func(entrypoint string, actors, tunnels int, lost uint64) {
			s.gauge(descActors, float64(actors), entrypoint)
			s.gauge(descTunnels, float64(tunnels), entrypoint)
			s.counter(descAuditLost, lost, entrypoint)
		})
	}
}

func (s *scrape) upstream(t Topology) {
	if s.src.Upstream == nil {
		return
	}
	held := make(map[string][2]int64)
	s.src.Upstream(func(service string, idle, active int64) {
		h := held[service]
		held[service] = [2]int64{h[0] + idle, h[1] + active}
	})
	for _, svc := range t.Services {
		h := held[svc.Name]
		s.gauge(descUpstream, float64(h[0]), svc.Name, "idle")
		s.gauge(descUpstream, float64(h[1]), svc.Name, "active")
	}
}

type backendState struct {
	healthy float64
	active  int64
}

func (s *scrape) backends() map[string]backendState {
	all := make(map[string]backendState)
	if s.src.Backends != nil {
		s.src.Backends(func(id string, healthy bool, active int64) {
			b := backendState{active: active}
			if healthy {
				b.healthy = 1
			}
			all[id] = b
		})
	}
	return all
}

func (s *scrape) queues() map[string]int64 {
	all := make(map[string]int64)
	if s.src.QueueDepth != nil {
		s.src.QueueDepth(func(service string, waiting int64) { all[service] = waiting })
	}
	return all
}

func (v *connStats) render(s *scrape, name string) {
	for o := exchange.OutcomeOK; o < exchange.Outcomes; o++ {
		if o != exchange.OutcomeUpgraded {
			s.counter(descConns, v.outcomes[o].Load(), name, o.String())
		}
	}
	s.counter(descConnBytes, v.in.Load(), name, "in")
	s.counter(descConnBytes, v.out.Load(), name, "out")
}

func (r *routerStats) render(s *scrape, name string) {
	var requests, errors, micros uint64
	for i := range r.shards {
		requests += r.shards[i].requests.Load()
		errors += r.shards[i].errors.Load()
		micros += r.shards[i].micros.Load()
	}
	s.counter(descRouter, requests, name)
	s.counter(descRouterError, errors, name)
	s.counter(descRouterTime, micros, name)
}

func (v *serviceStats) render(s *scrape, name string) {
	var requests, errors uint64
	for i := range v.shards {
		errors += v.shards[i].errors.Load()
		for j := range v.shards[i].duration.buckets {
			requests += v.shards[i].duration.buckets[j].Load()
		}
	}
	s.counter(descService, requests, name)
	s.counter(descServiceErr, errors, name)
	if v.sessions.used() {
		v.sessions.render(s, name)
	}
}

// sessionOutcomes are how a session can end.
var sessionOutcomes = [...]exchange.Outcome{exchange.OutcomeUpgraded, exchange.OutcomeTimeout, exchange.OutcomeDrained, exchange.OutcomeAborted}

func (v *sessionStats) render(s *scrape, name string) {
	s.gauge(descSessions, float64(v.open.Load()), name)
	for _, o := range sessionOutcomes {
		s.counter(descSessionEnds, v.outcomes[o].Load(), name, o.String())
	}
	s.counter(descSessionByte, v.in.Load(), name, "in")
	s.counter(descSessionByte, v.out.Load(), name, "out")
}

// renderSignals renders what autoscalers read: the signals with their freshness.
func (v *serviceStats) renderSignals(s *scrape, name string, waiting int64) {
	var active int64
	var duration, ttft sum
	for i := range v.shards {
		active += v.shards[i].active.Load()
		duration.add(&v.shards[i].duration)
		ttft.add(&v.shards[i].ttft)
	}
	s.gauge(descActive, float64(active), name)
	s.gauge(descQueue, float64(waiting), name)
	s.histogram(descDuration, duration, name)
	s.histogram(descTTFT, ttft, name)
	for _, signal := range []string{"active_requests", "queue_depth", "backend_pressure"} {
		s.signal(name, signal, s.now.UnixMilli())
	}
	s.signal(name, "request_latency", v.lastDuration.ms.Load())
	s.signal(name, "ttft", v.lastTTFT.ms.Load())
}

// signal renders when a signal was observed; nothing before the first time: absent means unknown.
func (s *scrape) signal(service, name string, ms int64) {
	if ms == 0 {
		return
	}
	s.gauge(descObserved, float64(ms)/1000, service, name)
	s.gauge(descAge, float64(max(s.now.UnixMilli()-ms, 0))/1000, service, name)
}

// sum is a histogram added up over its shards.
type sum struct {
	buckets [len(bucketBounds) + 1]uint64
	micros  uint64
}

func (t *sum) add(h *histogram) {
	for i := range h.buckets {
		t.buckets[i] += h.buckets[i].Load()
	}
	t.micros += h.micros.Load()
}

// histogram renders cumulative buckets; the count is their sum, so that both always agree.
func (s *scrape) histogram(d *prometheus.Desc, t sum, service string) {
	cumulative := make(map[float64]uint64, len(bucketBounds))
	var n uint64
	for i, le := range bucketBounds {
		n += t.buckets[i]
		cumulative[le] = n
	}
	n += t.buckets[len(bucketBounds)]
	if m, err := prometheus.NewConstHistogram(d, n, float64(t.micros)/1e6, cumulative, service); err == nil {
		s.out <- m
	}
}
