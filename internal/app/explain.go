package app

import (
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/snapshot"
)

// Question and Answer are those of Explain.
type (
	Question = snapshot.Question
	Answer   = snapshot.Answer
)

// Explain tells what a request would meet under a configuration, without sending it.
func Explain(cfg *config.Config, q Question) (*Answer, error) { return snapshot.Explain(cfg, q) }
