package telemetry

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Sources are what other parts know at scrape time. Every func may be nil: its metric is then left out. They are
// called from any goroutine, must not block, and may report names that the topology lacks: those are ignored.
type Sources struct {
	// Connections reports the open downstream connections of each entrypoint.
	Connections func(report func(entrypoint string, open int64))
	// Datagrams reports what udp entrypoints have passed on and dropped.
	Datagrams func(report func(entrypoint string, c DatagramCounts))
	// Backends reports each backend by its id.
	Backends func(report func(id string, healthy bool, active int64))
	// Upstream reports the connections that each service holds to its backends.
	Upstream func(report func(service string, idle, active int64))
	// QueueDepth reports how many exchanges wait for a service; without it the depth is 0.
	QueueDepth func(report func(service string, waiting int64))
	// Certificates reports when the certificate of an entrypoint ends; of several, the first to end.
	Certificates func(report func(entrypoint string, notAfter time.Time))
	// CertificateChanges counts files taken up and refused, and certificates issued and not issued, since the start.
	CertificateChanges func() (reloaded, broken, issued, refused uint64)
	// Channels counts the named channels of WebSocket clients and their subscriptions, and since the start the messages
	// that were passed on and skipped.
	Channels func() (channels, subscriptions int, delivered, skipped uint64)
	// Decisions counts what was decided about what leaves actors, by the entrypoint, the leg and the reason.
	Decisions func(report func(entrypoint, leg, reason string, n uint64))
	// Egress reports the actors that have tunnels at an entrypoint, their tunnels, and the lines of the audit log that were lost.
	Egress func(report func(entrypoint string, actors, tunnels int, lost uint64))
	// Actors is what is known of requests on their way to actors; nil: there is no such way.
	Actors func() *Actors
	// Generations is the number of configurations that are still in use.
	Generations func() int64
	// AccessLogDropped is the number of access log entries that were lost.
	AccessLogDropped func() uint64
}

// SetSources tells where the numbers of other parts come from.
func (m *Metrics) SetSources(s Sources) { m.sources.Store(&s) }

// Budget is the largest number of series, runtime and process metrics and those of entrypoints for actors left out, that a topology may render:
// 7 + 3R + 50S + 3B + M for the compatible families, and 5 + 2E + 2S for those that we add: the status class 1xx, two
// reload results, generations, lost log entries, two an entrypoint and two a service.
func (t Topology) Budget() int {
	backends := 0
	for _, s := range t.Services {
		backends += len(s.Backends)
	}
	base := 7 + 3*len(t.Routers) + 50*len(t.Services) + 3*backends + len(t.Middlewares)
	return base + 5 + 2*len(t.Entrypoints) + 2*len(t.Services)
}

// Gatherer returns the metrics of the process for exposition, with the runtime's and the process's own.
func (m *Metrics) Gatherer() prometheus.Gatherer {
	reg := prometheus.NewRegistry()
	reg.MustRegister(&collector{m: m, now: time.Now}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// Handler serves the metrics: text format 0.0.4, OpenMetrics when asked for, compressed when accepted.
func (m *Metrics) Handler(log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(m.Gatherer(), promhttp.HandlerOpts{
		ErrorLog:            scrapeLog{log},
		ErrorHandling:       promhttp.ContinueOnError,
		EnableOpenMetrics:   true,
		OfferedCompressions: []promhttp.Compression{promhttp.Identity, promhttp.Gzip},
		MaxRequestsInFlight: 8,
		Timeout:             10 * time.Second,
	})
}

// scrapeLog passes the library's complaints on.
type scrapeLog struct{ log *slog.Logger }

// Println logs what the library says about one scrape.
func (s scrapeLog) Println(v ...any) { s.log.Warn("metrics exposition", "detail", v) }
