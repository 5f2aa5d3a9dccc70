package cert

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newZap gives certmagic, which speaks zap, our log. All of it is for debugging: what goes wrong comes back as an error, and
// is told once.
func newZap(log *slog.Logger) *zap.Logger { return zap.New(zapCore{log: log}) }

type zapCore struct{ log *slog.Logger }

// Enabled reports whether the level is logged.
func (c zapCore) Enabled(zapcore.Level) bool {
	return c.log.Enabled(context.Background(), slog.LevelDebug)
}

// With adds fields to every entry.
func (c zapCore) With(f []zapcore.Field) zapcore.Core { return zapCore{c.log.With(attributes(f)...)} }

// Check adds the core to an entry that is logged.
func (c zapCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write logs an entry.
func (c zapCore) Write(e zapcore.Entry, f []zapcore.Field) error {
	c.log.Debug("acme: "+e.Message, attributes(f)...)
	return nil
}

// Sync has nothing to do.
func (zapCore) Sync() error { return nil }

func attributes(fields []zapcore.Field) []any {
	m := zapcore.NewMapObjectEncoder()
	all := make([]any, 0, len(fields))
	for _, f := range fields {
		f.AddTo(m)
	}
	for k, v := range m.Fields {
		all = append(all, slog.Any(k, v))
	}
	return all
}
