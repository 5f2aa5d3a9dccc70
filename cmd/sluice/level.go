package main

import (
	"log/slog"
	"strings"

	"github.com/sluice-proxy/sluice/internal/app"
)

// levelTrace is below what slog names.
const levelTrace = slog.LevelDebug - 4

var levels = []struct {
	name  string
	level slog.Level
}{
	{"trace", levelTrace}, {"debug", slog.LevelDebug}, {"info", slog.LevelInfo}, {"warn", slog.LevelWarn}, {"error", slog.LevelError},
}

func levelNames() []string {
	var names []string
	for _, l := range levels {
		names = append(names, l.name)
	}
	return names
}

func parseLevel(name string) (slog.Level, bool) {
	for _, l := range levels {
		if strings.EqualFold(l.name, strings.TrimSpace(name)) {
			return l.level, true
		}
	}
	return 0, false
}

// logger makes the process log on standard error. The flag decides, then the environment: A3S_LOG, then RUST_LOG, of
// which the first plain level counts, since filters by module mean nothing here.
func (c *cli) logger() (*slog.Logger, error) {
	level := slog.LevelInfo
	if c.logLevel != "" {
		var ok bool
		if level, ok = parseLevel(c.logLevel); !ok {
			return nil, usagef("unknown --log-level %q, want one of %s", c.logLevel, strings.Join(levelNames(), ", "))
		}
	} else {
		level = c.levelOfEnvironment()
	}
	switch c.logFormat {
	case "auto", "text", "json":
	default:
		return nil, usagef("unknown --log-format %q, want auto, text or json", c.logFormat)
	}
	return app.NewLogger(nil, c.logFormat, level)
}

func (c *cli) levelOfEnvironment() slog.Level {
	for _, name := range []string{"A3S_LOG", "RUST_LOG"} {
		for part := range strings.SplitSeq(c.env(name), ",") {
			if level, ok := parseLevel(part); ok {
				return level
			}
		}
	}
	return slog.LevelInfo
}
