package main

// Ours, the Rust reference and Caddy.

// aclRoutes are the ways to the upstreams in the language of sluice and of the reference, which spell only the rule that
// takes every connection differently.
func aclRoutes(tcpRule string) string {
	return `entrypoints "tcp" {
  address  = "127.0.0.1:{{.TCP}}"
  protocol = "tcp"
}
entrypoints "udp" {
  address  = "127.0.0.1:{{.UDP}}"
  protocol = "udp"
}
routers "all" {
  rule        = "PathPrefix(` + "`/`" + `)"
  service     = "up"
  entrypoints = ["web", "tls"]
}
routers "calls" {
  rule        = "PathPrefix(` + "`/bench.Echo/`" + `)"
  service     = "calls"
  entrypoints = ["web", "tls"]
}
routers "tcp" {
  rule        = "` + tcpRule + `"
  service     = "tcp"
  entrypoints = ["tcp"]
}
routers "udp" {
  rule        = "PathPrefix(` + "`/`" + `)"
  service     = "udp"
  entrypoints = ["udp"]
}
services "up" {
  load_balancer {
    servers = [{ url = "http://127.0.0.1:{{.Upstream}}" }]
  }
}
services "calls" {
  load_balancer {
    servers = [{ url = "h2c://127.0.0.1:{{.GRPC}}" }]
  }
}
services "tcp" {
  load_balancer {
    servers = [{ url = "tcp://127.0.0.1:{{.EchoTCP}}" }]
  }
}
services "udp" {
  load_balancer {
    servers = [{ url = "udp://127.0.0.1:{{.EchoUDP}}" }]
  }
}
`
}

var referencePeer = peer{
	name:    nameReference,
	note:    "the Rust gateway of the same configuration language, metrics, access log and tracing off",
	find:    inCache("cargo/bin/a3s-gateway", "a3s-gateway"),
	version: []string{"--version"},
	config:  "gateway.acl",
	args: func(_ site, config string) []string {
		return []string{"--config", config, "--log-level", "warn"}
	},
	text: `entrypoints "web" { address = "127.0.0.1:{{.Plain}}" }
entrypoints "tls" {
  address = "127.0.0.1:{{.TLS}}"
  tls {
    cert_file = "{{.Cert}}"
    key_file  = "{{.Key}}"
  }
}
` + aclRoutes("PathPrefix(`/`)") + `observability {
  metrics_enabled    = false
  access_log_enabled = false
  tracing_enabled    = false
}
`,
	lacks: []string{"W8a"},
}

var sluicePeer = peer{
	name:    nameSluice,
	note:    "defaults with all timeouts on, access log on, metrics scraped each second",
	find:    findSluice,
	version: []string{"--version"},
	config:  "gateway.acl",
	args:    func(_ site, config string) []string { return []string{"--config", config} },
	scrape:  "/api/gateway/metrics",
	text: `entrypoints "web" {
  address         = "127.0.0.1:{{.Plain}}"
  max_connections = 20000
}
entrypoints "tls" {
  address = "127.0.0.1:{{.TLS}}"
  tls {
    cert_file = "{{.Cert}}"
    key_file  = "{{.Key}}"
  }
}
` + aclRoutes("HostSNI(`*`)") + `observability {
  access_log {
    output = "{{.Log}}"
    format = "json"
  }
}
management {
  enabled        = true
  address        = "127.0.0.1:{{.Admin}}"
  auth_token_env = ""
}
`,
}

var caddyPeer = peer{
	name:    nameCaddy,
	note:    "as found on the path; defaults, no access log",
	find:    onPath("caddy"),
	version: []string{"version"},
	config:  "Caddyfile",
	args: func(_ site, config string) []string {
		return []string{"run", "--config", config, "--adapter", "caddyfile"}
	},
	text: `{
	admin off
	auto_https off
	persist_config off
	grace_period 1s
	log {
		level ERROR
	}
}
http://:{{.Plain}} {
	bind 127.0.0.1
	reverse_proxy 127.0.0.1:{{.Upstream}}
}
https://:{{.TLS}} {
	bind 127.0.0.1
	tls {{.Cert}} {{.Key}}
	reverse_proxy /bench.Echo/* h2c://127.0.0.1:{{.GRPC}}
	reverse_proxy 127.0.0.1:{{.Upstream}}
}
`,
	lacks: []string{"W8b", "W9"},
}
