package config

import (
	"slices"
	"strconv"
)

// checkIdentities reports a limit that counts identities apart where no client can have one.
func (d *decoder) checkIdentities(cfg *Config, t text, r *Router, title string) {
	m := cfg.Middlewares[t.s]
	if m == nil || m.RateLimit == nil || m.RateLimit.Per != PerIdentity {
		return
	}
	for _, name := range sortedKeys(cfg.Entrypoints) {
		e := cfg.Entrypoints[name]
		bound := slices.Contains(r.Entrypoints, name) || len(r.Entrypoints) == 0 && e.Protocol == r.Protocol && !e.OnlyByName()
		if bound && !e.Tunnelled() && (e.TLS == nil || e.TLS.ClientAuth == ClientAuthOff) {
			d.bad(t, CodeConflict, "middlewares %s counts identities apart, and %s gets requests from entrypoints %s, whose clients prove none", t.quote(), title, strconv.Quote(name)).Hint = `give the entrypoint tls { client_auth = "require", client_ca_file = "…" }`
			return
		}
	}
}
