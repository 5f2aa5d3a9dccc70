package config

import "github.com/sluice-proxy/sluice/internal/acl"

// PeekFileProvider returns what the main text says about the file provider, before the rest can be judged: the
// fragments that the rest refers to are only found by it. Nil means that there is none. It is false, and says nothing,
// when the text has a syntax error.
func (l Loader) PeekFileProvider(main Source) (*FileProvider, bool) {
	if _, found := acl.Parse(main.File, main.Text); found.HasErrors() {
		return nil, false
	}
	cfg, _ := l.decode([]Source{main}, nil)
	return cfg.Providers.File, true
}
