package telemetry

import (
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/sluice-proxy/sluice/internal/terminal"
)

// Masked stands in the process log in the place of a secret.
const Masked = "[redacted]"

// ProcessLog says how the process log looks.
type ProcessLog struct {
	Output *os.File   // nil: standard error
	Format string     // "text", "json"; "" or "auto": text on a terminal, JSON otherwise
	Level  slog.Level // least level that is written
}

// NewHandler returns the handler of the process log. Attributes that look like secrets by their name are masked,
// and so is the user information of URLs. It refuses an unknown format.
func NewHandler(o ProcessLog) (slog.Handler, error) {
	if o.Output == nil {
		// A write to the descriptor 2 itself would end the process when nobody reads any more.
		stderr, err := duplicate(os.Stderr)
		if err != nil {
			return nil, fmt.Errorf("opening the process log: %w", err)
		}
		o.Output = stderr
	}
	opts := &slog.HandlerOptions{Level: o.Level, ReplaceAttr: mask}
	text := o.Format == "text"
	switch o.Format {
	case "text", "json":
	case "", "auto":
		text = terminal.Is(o.Output)
	default:
		return nil, fmt.Errorf("unknown log format %q: want auto, text or json", o.Format)
	}
	if text {
		return slog.NewTextHandler(o.Output, opts), nil
	}
	return slog.NewJSONHandler(o.Output, opts), nil
}

// secretWords mark a name as that of a secret.
var secretWords = []string{
	"authorization", "cookie", "password", "passwd", "passphrase", "secret", "token", "credential", "apikey", "privatekey",
}

// secretName reports whether a value of that name may be a secret. Names of places (token_env, key_file) are not.
func secretName(name string) bool {
	name = strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == '.' || r == ' ' {
			return -1
		}
		return r
	}, strings.ToLower(name))
	for _, place := range []string{"env", "file", "path", "id", "count"} {
		if strings.HasSuffix(name, place) {
			return false
		}
	}
	for _, word := range secretWords {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// mask is the ReplaceAttr of the process log. Durations are written as people do, in either format.
func mask(groups []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString, slog.KindAny:
	case slog.KindDuration: // as JSON it would be a number of nanoseconds, which says its unit nowhere
		return slog.String(a.Key, a.Value.Duration().String())
	default:
		return a // numbers, times and truth values are no secrets
	}
	if secretName(a.Key) {
		return slog.String(a.Key, Masked)
	}
	for _, g := range groups {
		if secretName(g) {
			return slog.String(a.Key, Masked)
		}
	}
	switch v := a.Value.Any().(type) {
	case string:
		return slog.String(a.Key, maskURLs(v))
	case error:
		return slog.String(a.Key, maskURLs(v.Error()))
	}
	return a
}

// maskURLs masks the user information of every URL in s.
func maskURLs(s string) string {
	if !strings.Contains(s, "://") || !strings.Contains(s, "@") {
		return s
	}
	var b strings.Builder
	for {
		at := strings.Index(s, "://")
		if at < 0 {
			b.WriteString(s)
			return b.String()
		}
		b.WriteString(s[:at+3])
		s = s[at+3:]
		end := strings.IndexAny(s, "/?# \t\n\"'<>")
		if end < 0 {
			end = len(s)
		}
		if user := strings.LastIndexByte(s[:end], '@'); user >= 0 {
			b.WriteString(Masked)
			s = s[user:]
		}
	}
}
