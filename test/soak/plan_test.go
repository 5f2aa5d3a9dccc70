//go:build linux

package soak_test

import (
	"os"
	"testing"
	"time"
)

// plan is the size of a run.
type plan struct {
	requests int64         // until so many have been answered,
	duration time.Duration // or so much time has passed; each unless it is zero

	connections, streams, uploads int
	streamTime                    time.Duration
	reloads, upgrades             int
}

// full is what the product promises.
var full = plan{
	requests: 1_000_000, connections: 64, streams: 200, streamTime: 20 * time.Second, uploads: 8, reloads: 100, upgrades: 2,
}

// chosen reads SLUICE_SOAK: nothing is the short form, "full" the whole one, a duration the whole one for that long.
func chosen(t *testing.T) plan {
	switch text := os.Getenv("SLUICE_SOAK"); text {
	case "":
		return plan{
			requests: 30_000, duration: 15 * time.Second, connections: 64, streams: 20, streamTime: 5 * time.Second, uploads: 8, reloads: 10, upgrades: 1,
		}
	case "full":
		return full
	default:
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			t.Fatalf("SLUICE_SOAK is %q, want a duration or full", text)
		}
		p := full
		p.requests, p.duration, p.reloads = 0, d, max(10, min(100, int(d/time.Second)))
		return p
	}
}

// progress is how much of the plan has been done, from 0 to 1.
func (p plan) progress(answered int64, since time.Duration) float64 {
	done := 0.0
	if p.requests > 0 {
		done = float64(answered) / float64(p.requests)
	}
	if p.duration > 0 {
		done = max(done, float64(since)/float64(p.duration))
	}
	return done
}
