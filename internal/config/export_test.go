package config

import "github.com/sluice-proxy/sluice/internal/acl"

// Decode is Load that returns the configuration also when it is refused, and tells every key the decoder knows.
func (l Loader) Decode(sources []Source, seen func(kind, key string)) (*Config, acl.Diagnostics) {
	return l.decode(sources, seen)
}

// MiddlewareKeys is the table behind the hints about keys of other types.
func MiddlewareKeys() map[string][]string {
	out := map[string][]string{}
	for _, mt := range middlewareTypes {
		out[mt.name] = mt.keys
	}
	return out
}
