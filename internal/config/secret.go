package config

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
)

// Redacted is what every view prints in the place of a secret.
const Redacted = "[redacted]"

// Secret is a text that must not be printed. Every formatting verb, JSON and slog show Redacted instead; only Reveal
// gives the text. The text is kept behind a pointer, so that printing a struct with an unexported Secret in it shows
// an address at most. The zero Secret is the empty text.
type Secret struct{ text *string }

// NewSecret wraps a text.
func NewSecret(text string) Secret { return Secret{text: &text} }

// Reveal returns the text. The caller must not print, log or wrap it into an error.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// String returns Redacted.
func (s Secret) String() string { return Redacted }

// GoString returns Redacted.
func (s Secret) GoString() string { return Redacted }

// Format writes Redacted for every verb, also those that fit no string.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, Redacted) }

// MarshalJSON returns Redacted as a JSON string.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + Redacted + `"`), nil }

// MarshalText returns Redacted.
func (s Secret) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// LogValue returns Redacted.
func (s Secret) LogValue() slog.Value { return slog.StringValue(Redacted) }

// shown is the value of the field as views print it.
func (h HeaderValue) shown() string {
	if h.Secret {
		return Redacted
	}
	return h.Value
}

// String returns `name: value`, with a secret value masked.
func (h HeaderValue) String() string { return h.Name + ": " + h.shown() }

// Format writes what String returns, for every verb.
func (h HeaderValue) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, h.String()) }

// MarshalText returns what String returns.
func (h HeaderValue) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// LogValue returns what String returns.
func (h HeaderValue) LogValue() slog.Value { return slog.StringValue(h.String()) }

// credentialHeaders are fields whose value is a credential wherever it came from.
var credentialHeaders = []string{"authorization", "cookie", "set-cookie", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key"}

// credentialWords are parts of field names that speak of a credential.
var credentialWords = []string{"token", "secret", "password", "apikey", "api-key", "credential"}

// carriesCredential reports whether a field of that name holds a credential, judged by its name.
func carriesCredential(name string) bool {
	name = strings.ToLower(name)
	return slices.Contains(credentialHeaders, name) ||
		slices.ContainsFunc(credentialWords, func(w string) bool { return strings.Contains(name, w) })
}

// mentionsCredential reports whether a rule may hold the wanted value of a credential field.
func mentionsCredential(rule string) bool {
	rule = strings.ToLower(rule)
	in := func(w string) bool { return strings.Contains(rule, w) }
	return slices.ContainsFunc(credentialHeaders, in) || slices.ContainsFunc(credentialWords, in)
}

// show returns s as a view prints it: masked when it contains a value that was read by file(...).
func (c *Config) show(s string) string {
	for _, h := range c.hidden {
		if h != "" && strings.Contains(s, h) {
			return Redacted
		}
	}
	return s
}
