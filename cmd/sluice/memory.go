package main

import (
	"log/slog"
	"runtime/debug"
	"runtime/metrics"
)

// collectionPercent is how much the heap may grow over what is live until it is collected, unless GOGC says otherwise.
// What is live is small and mostly pooled; collecting it at the runtime's 100 costs processor time that requests want.
const collectionPercent = 400

// tuneMemory sets the default for GOGC. GOMEMLIMIT is the runtime's own affair: when the limit comes near it collects
// sooner, whatever the percentage.
func (c *cli) tuneMemory(log *slog.Logger) {
	if c.env("GOGC") == "" {
		debug.SetGCPercent(collectionPercent)
	}
	s := []metrics.Sample{{Name: "/gc/gogc:percent"}, {Name: "/gc/gomemlimit:bytes"}}
	metrics.Read(s)
	log.Debug("memory", "gogc", s[0].Value.Uint64(), "gomemlimit", s[1].Value.Uint64())
}
