package service

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// Parking says how long requests wait for something that has to be woken first, how many of them, and how often it is
// tried. It is plain data.
type Parking struct {
	// Budget is how long it is tried, counted from the beginning of the first attempt. More than 0. An attempt that is under
	// way when it ends is not ended with it: it has 2 minutes of its own.
	Budget time.Duration
	// Max is how many requests may be parked at a time. With 0 none is: what fails is not tried again, with the one
	// exception of RetryConflict.
	Max int
	// Interval is the first delay between two attempts. More than 0.
	Interval time.Duration
	// Factor is how each delay grows out of the one before. At least 1.
	Factor float64
	// Jitter is the largest part of itself by which a delay is made longer at random. From 0, below 1.
	Jitter float64
}

// DefaultParking are the defaults of the actor ingress: about 18 attempts in 5 seconds.
func DefaultParking() Parking {
	return Parking{Budget: 5 * time.Second, Max: 1024, Interval: 100 * time.Millisecond, Factor: 1.1, Jitter: 0.1}
}

// Validate returns everything that is wrong, each beginning with the name of the setting, or nil.
func (p Parking) Validate() error {
	var errs []error
	fault := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	fault(p.Budget <= 0, "budget: must be more than 0, is %s", p.Budget)
	fault(p.Max < 0, "max: must not be negative, is %d", p.Max)
	fault(p.Interval <= 0, "retry interval: must be more than 0, is %s", p.Interval)
	fault(!(p.Factor >= 1) || math.IsInf(p.Factor, 1), "retry factor: must be at least 1, is %v", p.Factor)
	fault(!(p.Jitter >= 0 && p.Jitter < 1), "retry jitter: must be from 0 and below 1, is %v", p.Jitter)
	return errors.Join(errs...)
}

const (
	// attemptCeiling ends an attempt that is not answered, where requests are parked. The budget never ends one: whoever
	// does the waking might be left half way, and a late success is still a success. What is woken may take 30 s by default
	// until its probes are answered, and some take longer.
	attemptCeiling = 2 * time.Minute
	// unparkedCeiling is all the time that there is where nothing is parked, for one attempt as for several.
	unparkedCeiling = 15 * time.Second
	// minFlights is how many flights there may be at least, however few places there are.
	minFlights = 1024
)

// flights is how many keys may be tried at a time.
func (p Parking) flights() int { return max(minFlights, 2*p.Max) }

// Delay is the one after failed attempt n, counted from 0, when so much of the budget is left: it is never longer than
// that, so that one last attempt is made when the budget ends.
func (p Parking) Delay(n int, left time.Duration) time.Duration {
	d := float64(p.Interval) * math.Pow(p.Factor, float64(n)) * (1 + p.Jitter*rand.Float64())
	if !(d < float64(left)) {
		return left
	}
	return time.Duration(d)
}

// Retry says what a failed attempt is worth.
type Retry uint8

// Kinds of failures.
const (
	// NoRetry is an answer.
	NoRetry Retry = iota
	// RetryParked may pass: there is no room now, or the other side is just doing something else.
	RetryParked
	// RetryConflict passes by itself: somebody else is at the same work. It is tried again for 15 s even where nothing is
	// parked.
	RetryConflict
)

// Landing is how a wait ended.
type Landing uint8

// Landings.
const (
	Served    Landing = iota // it is awake
	Failed                   // a failure that is not tried again
	Exhausted                // the budget ran out; the error is that of the last attempt
	TimedOut                 // an attempt was not answered, in all the time that it may take
	Left                     // the caller went away
	Rejected                 // there was no place to wait
)

// String is the word of metrics.
func (l Landing) String() string {
	return [...]string{"served", "error", "budget_exhausted", "timeout", "canceled", "rejected"}[l]
}
