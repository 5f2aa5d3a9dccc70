package config

import (
	"slices"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// config decodes the merged document.
func (d *decoder) config(root *object) *Config {
	cfg := &Config{
		Mode:        d.mode(root.single("mode")),
		Entrypoints: map[string]*Entrypoint{},
		Routers:     map[string]*Router{},
		Services:    map[string]*Service{},
		Middlewares: map[string]*Middleware{},
	}
	cfg.Managed = d.managed(root.single("managed"), cfg.Mode)
	root.named("entrypoints", "entrypoint", func(name string, o *object) { cfg.Entrypoints[name] = d.entrypoint(name, o) })
	root.named("routers", "router", func(name string, o *object) { cfg.Routers[name] = d.router(name, o) })
	root.named("services", "service", func(name string, o *object) { cfg.Services[name] = d.service(name, o) })
	root.named("middlewares", "middleware", func(name string, o *object) { cfg.Middlewares[name] = d.middleware(name, o) })
	d.bind(cfg)
	d.providers(cfg, root.single("providers"))
	d.observability(cfg, root.single("observability"))
	d.management(cfg, root.single("management"))
	cfg.Inference = d.inference(root.single("inference"), cfg.Mode)
	cfg.ShutdownTimeout = root.topSeconds("shutdown_timeout_secs", 30)
	cfg.ShutdownDelay = root.topSeconds("shutdown_delay_secs", 0)
	cfg.UpgradeDrain = root.topSeconds("upgrade_drain_secs", 3600)
	root.finish(nil)
	return cfg
}

// single returns the one unlabelled top-level block of that name, or nil. A second one, also in another file, is
// reported with both places.
func (o *object) single(name string) *object {
	c := o.child(name)
	if c != nil {
		c.title = name
	}
	return c
}

// named hands every block of a named kind to decode. Duplicates, also across files, are reported with both places
// and decoded no further.
func (o *object) named(plural, singular string, decode func(name string, o *object)) {
	first := map[string]acl.Span{}
	for _, c := range o.children(plural, singular) {
		c.title = plural
		name, at, ok := c.name()
		if !ok {
			continue
		}
		if prev, dup := first[name]; dup {
			o.d.fail(CodeDuplicate, at, "%s is already defined at %s", c.title, prev)
			continue
		}
		first[name] = at
		c.at = at
		decode(name, c)
	}
}

// topSeconds returns a top-level number of seconds, written as an attribute or as a block of the same name that holds
// it. Several files may not set it twice.
func (o *object) topSeconds(key string, def uint64) time.Duration {
	holder := &object{d: o.d, kind: o.kind, title: o.title, at: o.at}
	o.use(key)
	take := func(f *field) {
		if len(holder.fields) > 0 {
			o.d.fail(CodeDuplicate, f.keySpan, "%s is already set at %s", key, holder.fields[0].keySpan)
			return
		}
		holder.fields = append(holder.fields, f)
	}
	for _, f := range o.fields {
		if f.key == key {
			f.known = true
			take(f)
		}
	}
	for _, c := range o.blocks {
		if c.block.Name != key {
			continue
		}
		c.known = true
		inner := o.d.fromBlock(c.block)
		inner.kind = o.kind
		inner.noLabels()
		if i := slices.IndexFunc(inner.fields, func(f *field) bool { return f.key == key }); i >= 0 {
			inner.fields[i].known = true
			take(inner.fields[i])
		} else {
			inner.missing(key, "")
		}
		inner.use(key)
		inner.finish(nil)
	}
	return holder.seconds(key, def, 0)
}

func (d *decoder) mode(o *object) Mode {
	if o == nil {
		return Standalone
	}
	if f := o.take("kind"); f != nil && f.val.Kind == acl.String {
		trimmed := *f.val // blanks around the word have always been tolerated here
		trimmed.Str = strings.TrimSpace(trimmed.Str)
		f.val = &trimmed
	}
	kind, t := enum(o, "kind", Standalone, Standalone, CloudManaged)
	if !o.has("kind") {
		o.missing("kind", `write mode { kind = "standalone" }`)
	}
	if t.ok && kind == CloudManaged {
		d.later(t.at, "mode cloud-managed is", `this release runs mode { kind = "standalone" }`)
	}
	o.finish(nil)
	return kind
}
