package app

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/sluice-proxy/sluice/internal/acl"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/provider/file"
	"github.com/sluice-proxy/sluice/internal/telemetry"
)

// Inspection is a configuration that was read and judged without being put into force.
type Inspection struct {
	// Config is nil when there are errors among the findings.
	Config *config.Config
	// Diagnostics are all findings, warnings too.
	Diagnostics acl.Diagnostics
	// Sources are the texts by file name, for excerpts.
	Sources map[string][]byte
}

// Inspect reads the configuration at path, fragments included, exactly as Start and Reload do. With files it also checks
// what the configuration needs of this machine: certificates, keys, the management token. The error is about reading.
func Inspect(path string, files bool) (*Inspection, error) {
	sources, err := file.Read(path)
	if err != nil {
		return nil, err
	}
	i := &Inspection{Sources: sources.Texts()}
	load := config.Load
	if files {
		load = config.LoadHere
	}
	i.Config, i.Diagnostics = load(sources)
	return i, nil
}

// NewLogger returns the process log on f, nil being standard error. format is "text", "json", or "auto" for text on a
// terminal and JSON elsewhere.
func NewLogger(f *os.File, format string, level slog.Level) (*slog.Logger, error) {
	h, err := telemetry.NewHandler(telemetry.ProcessLog{Output: f, Format: format, Level: level})
	if err != nil {
		return nil, fmt.Errorf("process log: %w", err)
	}
	return slog.New(h), nil
}
