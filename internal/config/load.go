package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// Source is one text of a configuration: the main file or a fragment.
type Source struct {
	File string // named in findings
	Text []byte
}

// Loader turns texts into a Config. The zero Loader reads the process's environment and file system.
type Loader struct {
	// LookupEnv answers env(...); nil means os.LookupEnv.
	LookupEnv func(name string) (string, bool)
	// ReadFile answers file(...); nil means a bounded read of the file system. More than 64 KiB are refused.
	ReadFile func(path string) ([]byte, error)
	// Registered are the names of middlewares that the embedding program brings along. Routers may name them; the
	// configuration must not define them.
	Registered []string
}

// Load parses, merges, decodes and validates the sources as one document, with the zero Loader.
func Load(sources []Source) (*Config, acl.Diagnostics) { return Loader{}.Load(sources) }

// Load parses the sources in order, merges them as one document, decodes it, fills in the defaults and validates. It
// goes on after errors, so that one run finds them all; the findings are sorted by place. The Config is nil exactly
// when there is an error among them; warnings leave it usable. Certificate files are not read: see CheckFiles.
func (l Loader) Load(sources []Source) (*Config, acl.Diagnostics) {
	cfg, diags := l.decode(sources, nil)
	if diags.HasErrors() {
		return nil, diags
	}
	return cfg, diags
}

// decode is Load that also returns what could be decoded of a faulty configuration. seen is told every key that the
// decoder knows of the objects it met.
func (l Loader) decode(sources []Source, seen func(kind, key string)) (*Config, acl.Diagnostics) {
	d := &decoder{env: l.LookupEnv, read: l.ReadFile, registered: l.Registered, seen: seen}
	if d.env == nil {
		d.env = os.LookupEnv
	}
	if d.read == nil {
		d.read = func(path string) ([]byte, error) { return readBounded(path, maxFileValue) }
	}
	sum := sha256.New()
	root := &object{d: d, kind: topLevel, title: "the configuration"}
	for _, src := range sources {
		sum.Write(src.Text)
		doc, found := acl.Parse(src.File, src.Text)
		for _, f := range found {
			d.diags.Add(f)
		}
		d.broken = d.broken || found.HasErrors()
		if doc == nil {
			continue
		}
		if root.at.File == "" {
			root.at = acl.Span{File: src.File}
		}
		for _, a := range doc.Attrs {
			root.fields = append(root.fields, &field{key: a.Key, keySpan: a.KeySpan, val: a.Value})
		}
		for _, b := range doc.Blocks {
			root.blocks = append(root.blocks, &child{block: b})
		}
	}
	cfg := d.config(root)
	cfg.Digest = hex.EncodeToString(sum.Sum(nil))
	cfg.hidden = d.hidden
	if !d.broken {
		d.validate(cfg)
	}
	return cfg, d.findings()
}

var (
	errNotRegular = errors.New("not a regular file")
	errTooLarge   = errors.New("too large")
)

// readError says why a file cannot be read, without its path or content.
func readError(err error) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "the file does not exist"
	case errors.Is(err, fs.ErrPermission):
		return "this user may not read the file"
	case errors.Is(err, errTooLarge):
		return "the file is too large"
	case errors.Is(err, errNotRegular):
		return "it is not a regular file"
	}
	return "the file cannot be read"
}

// topLevel is the kind of the merged document.
const topLevel = "top level"
