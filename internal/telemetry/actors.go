package telemetry

import "github.com/prometheus/client_golang/prometheus"

// Actors are counts of requests on their way to actors.
type Actors struct {
	Parked   int    // that have a place now
	Rejected uint64 // that found none, since the start
	Routes   []ActorRoute
	Waits    []ActorWait
}

// ActorRoute is how long it took until it was known where an actor is.
type ActorRoute struct {
	Atespace, Template, Outcome, Resume string
	Took                                Distribution
}

// ActorWait is how long requests had a place.
type ActorWait struct {
	Outcome string
	Took    Distribution
}

// Distribution is a histogram that somebody else keeps.
type Distribution struct {
	Bounds []float64 // in seconds
	Counts []uint64  // one more: how many are at most as long as the bound, and longer than the one before
	Sum    float64   // in seconds
}

// The names are those that the installations know which this way is compatible with.
var (
	descRoute    = prometheus.NewDesc("atenet_router_route_duration_seconds", "Time until it was known where an actor is, waking included.", []string{"ate_template_atespace", "ate_template_name", "ate_router_outcome", "ate_router_resume"}, nil)
	descParked   = prometheus.NewDesc("atenet_router_parking_active", "Requests that have a place in the lot.", nil, nil)
	descParkTime = prometheus.NewDesc("atenet_router_parking_wait_duration_seconds", "Time for which requests had a place.", []string{"outcome"}, nil)
	descRejected = prometheus.NewDesc("atenet_router_parking_rejected_total", "Requests that found no place.", nil, nil)
)

// actors renders what is known of the ways to actors, if there are any.
func (s *scrape) actors() {
	if s.src.Actors == nil {
		return
	}
	a := s.src.Actors()
	if a == nil {
		return
	}
	s.gauge(descParked, float64(a.Parked))
	s.counter(descRejected, a.Rejected)
	for _, r := range a.Routes {
		s.distribution(descRoute, r.Took, r.Atespace, r.Template, r.Outcome, r.Resume)
	}
	for _, w := range a.Waits {
		s.distribution(descParkTime, w.Took, w.Outcome)
	}
}

func (s *scrape) distribution(d *prometheus.Desc, t Distribution, labels ...string) {
	cumulative, n := make(map[float64]uint64, len(t.Bounds)), uint64(0)
	for i, le := range t.Bounds {
		n += t.Counts[i]
		cumulative[le] = n
	}
	n += t.Counts[len(t.Bounds)]
	if m, err := prometheus.NewConstHistogram(d, n, t.Sum, cumulative, labels...); err == nil {
		s.out <- m
	}
}
