package app

import (
	"bytes"
	"context"
	"fmt"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/provider"
	"github.com/sluice-proxy/sluice/internal/provider/file"
)

// sources reads the texts that the configuration consists of.
func (a *App) sources() (provider.Sources, error) {
	if a.opts.ConfigPath == "" {
		return inline(a.opts.Text), nil
	}
	return file.Read(a.opts.ConfigPath)
}

// proposed are the texts of a proposal. A file that has lost its text while it was in force is refused: a full disk or an
// interrupted copy leaves one, and to be taken at its word would close every entrypoint and end the watching.
func (a *App) proposed(p proposal) (provider.Sources, error) {
	sources, err := p.sources, p.err
	if sources == nil && err == nil {
		sources, err = a.sources()
	}
	if err == nil && p.reason != starting && a.opts.ConfigPath != "" && len(bytes.TrimSpace(sources[0].Text)) == 0 {
		return nil, fmt.Errorf("configuration file %s: empty, which would close everything; to serve nothing, stop the process", a.opts.ConfigPath)
	}
	return sources, err
}

// inline is a configuration that lies in no file.
func inline(text string) provider.Sources {
	return provider.Sources{{File: "configuration", Text: []byte(text)}}
}

// watcher proposes a reload each time the configuration's files have changed. A nil watcher does nothing.
type watcher struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (w *watcher) stop() {
	if w != nil {
		w.cancel()
		<-w.done
	}
}

// rewatch starts, keeps or ends watching as the configuration in force wants it. Only the applier calls it.
func (a *App) rewatch(w *watcher, cfg *config.Config) *watcher {
	p := cfg.Providers.File
	want := a.opts.ConfigPath != "" && p != nil && p.Watch
	switch {
	case want && w != nil:
		return w
	case !want:
		w.stop()
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	w = &watcher{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		o := file.Options{Path: a.opts.ConfigPath, Loaded: cfg.Digest, Logger: a.log}
		file.Watch(ctx, o, func(s provider.Sources, err error) {
			select {
			case a.proposals <- proposal{reason: "file changed", sources: s, err: err}:
			case <-ctx.Done():
			}
		})
	}()
	return w
}
