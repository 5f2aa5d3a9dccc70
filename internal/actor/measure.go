package actor

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

// measures are the counts of requests on their way to actors. They live as long as the process. No actor is named in them.
type measures struct {
	mu     sync.Mutex // guards the maps
	routes map[RouteKey]*Distribution
	waits  map[string]*Distribution
}

// RouteKey tells kinds of routed requests apart.
type RouteKey struct {
	Template Ref    // of the actor; zero when it was not found, or there are too many templates
	Outcome  string // ok, cancelled, timeout, no_capacity, failed_precondition, lock_conflict, not_found, unavailable, rate_limited or resume_error
	Resume   string // none, triggered or joined
}

// maxRoutes bounds the kinds. Beyond it templates are not told apart.
const maxRoutes = 1024

// Distribution is how long something took.
type Distribution struct {
	Buckets [len(Bounds) + 1]uint64 // how many took at most as long as the bound of the same index; the last has none
	Sum     time.Duration
}

// Bounds are the upper bounds of a distribution, in seconds.
var Bounds = [...]float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}

func (d *Distribution) observe(took time.Duration) {
	i, _ := slices.BinarySearch(Bounds[:], took.Seconds())
	d.Buckets[i]++
	d.Sum += took
}

// route counts a request for which it is known now where its actor is, or that this will not be known.
func (m *measures) route(k RouteKey, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.routes[k]
	if d == nil && len(m.routes) >= maxRoutes {
		k.Template = Ref{}
		d = m.routes[k]
	}
	if d == nil {
		d = new(Distribution)
		m.routes[k] = d
	}
	d.observe(took)
}

// wait counts a request that had a place in the lot.
func (m *measures) wait(s service.Stay) {
	if s.Parked <= 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.waits[s.Landing.String()]
	if d == nil {
		d = new(Distribution)
		m.waits[s.Landing.String()] = d
	}
	d.observe(s.Parked)
}

// Measured calls routes and waits for each distribution there is.
func (w *Ways) Measured(route func(RouteKey, Distribution), wait func(outcome string, d Distribution)) {
	w.measures.mu.Lock()
	defer w.measures.mu.Unlock()
	for k, d := range w.measures.routes {
		route(k, *d)
	}
	for k, d := range w.measures.waits {
		wait(k, *d)
	}
}

// outcomeOf is the word for how a pick has ended.
func outcomeOf(err error) string {
	var control *Error
	var e *exchange.Error
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, service.ErrLotFull):
		return "rate_limited"
	case errors.As(err, &control):
		switch control.Code {
		case ResourceExhausted:
			return "no_capacity"
		case FailedPrecondition:
			return "failed_precondition"
		case Aborted:
			return "lock_conflict"
		case NotFound:
			return "not_found"
		case Unavailable:
			return "unavailable"
		case DeadlineExceeded:
			return "timeout"
		}
		return "resume_error"
	case !errors.As(err, &e):
		return "resume_error"
	}
	switch e.Code {
	case exchange.CodeClientGone, exchange.CodeDraining:
		return "cancelled"
	case exchange.CodeDeadlineExceeded, exchange.CodeActorTimeout:
		return "timeout"
	case exchange.CodeActorUnavailable, exchange.CodeConnectFailed, exchange.CodeBackendBusy:
		return "unavailable"
	}
	return "resume_error"
}

// resumeOf is the word for what a request had to do with its actor's waking.
func resumeOf(at located, s service.Stay) string {
	switch {
	case !at.resumed:
		return "none"
	case s.Joined:
		return "joined"
	}
	return "triggered"
}
