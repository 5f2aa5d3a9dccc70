package app

import (
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/snapshot"
)

// Question is a request that need not be sent to know what would happen to it.
type Question = snapshot.Question

// Answer is the walk that a request would take.
type Answer = snapshot.Answer

// Explain tells what a request would meet under a configuration, without sending it.
func Explain(cfg *config.Config, q Question) (*Answer, error) { return snapshot.Explain(cfg, q) }
