package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"
)

// tree is a JSON object; encoding/json writes its keys sorted.
type tree = map[string]any

// JSON prints the effective configuration: the keys of the language, defaults filled in, durations and addresses in
// canonical form, sorted, indented by two blanks, secrets masked, ending in a line end. Equal configurations give
// equal bytes.
func JSON(cfg *Config) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false) // rules are full of && and would be unreadable
	enc.SetIndent("", "  ")
	if err := enc.Encode(cfg.mask(cfg.tree())); err != nil {
		return nil, fmt.Errorf("printing the configuration: %w", err)
	}
	return buf.Bytes(), nil
}

// mask replaces every text that holds a value read by file(...).
func (c *Config) mask(v any) any {
	switch v := v.(type) {
	case string:
		return c.show(v)
	case []string:
		for i := range v {
			v[i] = c.show(v[i])
		}
	case []any:
		for i := range v {
			v[i] = c.mask(v[i])
		}
	case tree:
		for k := range v {
			v[k] = c.mask(v[k])
		}
	}
	return v
}

func (c *Config) tree() tree {
	t := tree{
		"mode": string(c.Mode), "managed": managedTree(c.Managed),
		"entrypoints": each(c.Entrypoints, entrypointTree),
		"routers": each(c.Routers, func(r *Router) any {
			return tree{
				"rule": c.showRule(r), "service": r.Service, "entrypoints": list(r.Entrypoints),
				"middlewares": list(r.Middlewares), "priority": r.Priority, "tls": orNull(string(r.TLS)),
			}
		}),
		"services":    each(c.Services, serviceTree),
		"middlewares": each(c.Middlewares, middlewareTree),
		"providers":   providersTree(c.Providers),
		"observability": tree{
			"metrics_enabled": c.Observability.Metrics, "access_log_enabled": c.Observability.AccessLog,
			"tracing_enabled": c.Observability.Tracing,
			"access_log":      tree{"output": c.Observability.Log.Output, "format": c.Observability.Log.Format},
		},
		"management":            managementTree(c.Management),
		"shutdown_timeout_secs": secs(c.ShutdownTimeout),
		"shutdown_delay_secs":   secs(c.ShutdownDelay),
		"upgrade_drain_secs":    secs(c.UpgradeDrain),
	}
	if c.Inference != nil {
		t["inference"] = inferenceTree(c.Inference)
	}
	return t
}

func each[T any](m map[string]T, f func(T) any) tree {
	t := tree{}
	for name, v := range m {
		t[name] = f(v)
	}
	return t
}

// list is a fresh, never nil list, so that an empty one prints as [].
func list(s []string) []string { return append([]string{}, s...) }

func secs(d time.Duration) int64 { return int64(d / time.Second) }
func dur(d time.Duration) string { return FormatDuration(d) }
func orNull(s string) any        { return when(s != "", s) }
func prefixes(ps []netip.Prefix) any {
	out := []string{}
	for _, p := range ps {
		out = append(out, formatPrefix(p))
	}
	return out
}

// when is v, or null.
func when(on bool, v any) any {
	if on {
		return v
	}
	return nil
}

func entrypointTree(e *Entrypoint) any {
	slashes := "reject"
	if e.AllowEncodedSlash {
		slashes = "allow"
	}
	return tree{
		"address": e.Address, "protocol": string(e.Protocol), "tls": tlsTree(e.TLS), "max_connections": e.MaxConnections,
		"max_connections_per_client": e.MaxPerClient,
		"header_timeout":             dur(e.HeaderTimeout), "body_idle_timeout": dur(e.BodyIdleTimeout),
		"write_idle_timeout": dur(e.WriteIdleTimeout), "keepalive_timeout": dur(e.KeepAliveTimeout),
		"max_header_bytes": e.MaxHeaderBytes, "max_headers": e.MaxHeaders, "encoded_slashes": slashes,
		"forwarded":                tree{"trusted_ips": prefixes(e.Forwarded.TrustedIPs)},
		"proxy_protocol":           tree{"trusted_ips": prefixes(e.ProxyProtocol)},
		"tcp_allowed_ips":          prefixes(e.TCPAllowedIPs),
		"tcp_hello_timeout":        when(e.Protocol == TCP, dur(e.TCPHelloTimeout)),
		"tcp_idle_timeout":         when(e.TCPIdleTimeout > 0, dur(e.TCPIdleTimeout)),
		"tcp_half_close_timeout":   when(e.Protocol == TCP || e.Protocol == CONNECT, dur(e.TCPHalfCloseTimeout)),
		"udp_session_timeout_secs": when(e.Protocol == UDP, secs(e.UDPSessionTimeout)),
		"udp_max_sessions":         when(e.Protocol == UDP, e.UDPMaxSessions),
		"udp_balance":              when(e.Protocol == UDP, string(e.UDPBalance)),
		"egress":                   egressTree(e.Egress),
	}
}

func serverTrees(servers []Server) any {
	out := []any{}
	for _, s := range servers {
		t := tree{"url": s.canonicalURL(), "weight": s.Weight}
		if s.Target != nil {
			t["target"] = tree{"target_id": s.Target.TargetID, "unit_id": s.Target.UnitID, "generation": s.Target.Generation}
		}
		out = append(out, t)
	}
	return out
}

// canonicalURL is the URL as it is dialed, without a default port or trailing slash.
func (s Server) canonicalURL() string {
	if len(s.Addr) > 5 && s.Addr[:5] == "unix:" {
		return s.Addr
	}
	scheme := s.Scheme
	if s.WebSocket {
		scheme = map[string]string{"http": "ws", "https": "wss"}[scheme]
	}
	return scheme + "://" + s.Host + s.Base
}

// protocol is what the probe speaks, in the words of the configuration; nil when it only connects.
func (h *HealthCheck) protocol() any {
	switch {
	case h.GRPC:
		return "grpc"
	case h.Path == "":
		return nil
	}
	return "http"
}

func serviceTree(s *Service) any {
	lb := s.LoadBalancer
	var health, sticky, mirror, failover any
	if h := lb.HealthCheck; h != nil {
		health = tree{
			"protocol": h.protocol(), "grpc_service": orNull(h.GRPCService),
			"path": orNull(h.Path), "interval": dur(h.Interval), "timeout": dur(h.Timeout),
			"unhealthy_threshold": h.UnhealthyThreshold, "healthy_threshold": h.HealthyThreshold,
		}
	}
	if lb.Sticky != nil {
		sticky = tree{"cookie": lb.Sticky.Cookie}
	}
	if s.Mirror != nil {
		mirror = tree{"service": s.Mirror.Service, "percentage": s.Mirror.Percentage}
	}
	if s.Failover != "" {
		failover = tree{"service": s.Failover}
	}
	revisions := []any{}
	for _, r := range s.Revisions {
		revisions = append(revisions, tree{
			"name": r.Name, "traffic_percent": r.TrafficPercent,
			"servers": serverTrees(r.Servers), "strategy": string(r.Strategy),
		})
	}
	return tree{
		"load_balancer": tree{
			"strategy": string(lb.Strategy), "request_timeout": dur(lb.RequestTimeout),
			"stream_idle_timeout": dur(lb.StreamIdleTimeout), "stream_total_timeout": dur(lb.StreamTotalTimeout),
			"servers": serverTrees(lb.Servers), "health_check": health, "sticky": sticky,
		},
		"upstream_error_status": lb.UpstreamErrorStatus, "pass_host": lb.PassHost,
		"transport": tree{
			"connect_timeout": dur(lb.Transport.ConnectTimeout), "idle_timeout": dur(lb.Transport.IdleTimeout),
			"max_idle": lb.Transport.MaxIdle, "max_connections": lb.Transport.MaxConnections,
			"ca_file": orNull(lb.Transport.CAFile), "server_name": orNull(lb.Transport.ServerName),
			"cert_file": orNull(lb.Transport.CertFile), "key_file": orNull(lb.Transport.KeyFile), "alpn": lb.Transport.ALPN.Names(),
			"ping_interval": when(lb.Transport.PingInterval > 0, dur(lb.Transport.PingInterval)), "max_age": when(lb.Transport.MaxAge > 0, dur(lb.Transport.MaxAge)),
			"max_requests": when(lb.Transport.MaxRequests > 0, lb.Transport.MaxRequests),
			"proxy":        orNull(lb.Transport.Proxy),
			"send_proxy":   when(lb.Transport.SendProxy > 0, fmt.Sprintf("v%d", lb.Transport.SendProxy)),
		},
		"websocket": tree{
			"idle_timeout": when(s.WebSocket.IdleTimeout > 0, dur(s.WebSocket.IdleTimeout)),
			"lifetime":     when(s.WebSocket.Lifetime > 0, dur(s.WebSocket.Lifetime)), "multiplex": s.WebSocket.Multiplex,
		},
		"connect": connectTree(s.Connect), "actor": actorTree(s.Actor, &lb),
		"scaling": scalingTree(s.Scaling), "revisions": revisions, "rollout": rolloutTree(s.Rollout),
		"mirror": mirror, "failover": failover,
	}
}

func scalingTree(s *Scaling) any {
	if s == nil {
		return nil
	}
	return tree{
		"min_replicas": s.MinReplicas, "max_replicas": s.MaxReplicas, "container_concurrency": s.ContainerConcurrency,
		"target_utilization": s.TargetUtilization, "scale_down_delay_secs": secs(s.ScaleDownDelay),
		"buffer_enabled": s.BufferEnabled, "buffer_timeout_secs": secs(s.BufferTimeout), "buffer_size": s.BufferSize,
		"executor_timeout_secs": secs(s.ExecutorTimeout), "executor": s.Executor, "executor_endpoint": s.ExecutorEndpoint,
	}
}

func rolloutTree(r *Rollout) any {
	if r == nil {
		return nil
	}
	return tree{
		"from": r.From, "to": r.To, "step_percent": r.StepPercent, "step_interval_secs": secs(r.StepInterval),
		"error_rate_threshold": r.ErrorRateThreshold, "latency_threshold_ms": r.LatencyThreshold.Milliseconds(),
	}
}

func middlewareTree(m *Middleware) any {
	t := tree{"type": m.Type}
	switch {
	case m.RateLimit != nil:
		t["rate"], t["burst"], t["per"] = m.RateLimit.Rate, m.RateLimit.Burst, m.RateLimit.Per
	case m.Headers != nil:
		t["request_headers"], t["response_headers"] = fields(m.Headers.Request), fields(m.Headers.Response)
	case m.StripPrefix != nil:
		t["prefixes"] = list(m.StripPrefix.Prefixes)
	case m.JWT != nil:
		t["header"], t["value"] = m.JWT.Header, m.JWT.Value
	case m.APIKey != nil:
		t["header"], t["keys"] = m.APIKey.Header, m.APIKey.Keys
	case m.BasicAuth != nil:
		t["username"], t["password"] = m.BasicAuth.Username, m.BasicAuth.Password
	case m.ForwardAuth != nil:
		t["forward_auth_url"], t["forward_auth_response_headers"] = m.ForwardAuth.URL, list(m.ForwardAuth.ResponseHeaders)
	case m.RateLimitRedis != nil:
		t["rate"], t["burst"], t["redis_url"] = m.RateLimitRedis.Rate, m.RateLimitRedis.Burst, m.RateLimitRedis.URL
	case m.CORS != nil:
		t["allowed_origins"], t["allowed_methods"] = list(m.CORS.Origins), list(m.CORS.Methods)
		t["allowed_headers"], t["max_age"] = list(m.CORS.Headers), secs(m.CORS.MaxAge)
	case m.BodyLimit != nil:
		t["max_body_bytes"] = m.BodyLimit.MaxBytes
	case m.Retry != nil:
		t["max_retries"], t["retry_interval_ms"] = m.Retry.MaxRetries, m.Retry.Interval.Milliseconds()
	case m.CircuitBreaker != nil:
		t["failure_threshold"], t["success_threshold"] = m.CircuitBreaker.FailureThreshold, m.CircuitBreaker.SuccessThreshold
		t["cooldown_secs"] = secs(m.CircuitBreaker.Cooldown)
	case m.IPAllow != nil:
		t["allowed_ips"] = prefixes(m.IPAllow.Allowed)
	case m.TCPFilter != nil:
		t["max_connections"], t["allowed_ips"] = m.TCPFilter.MaxConnections, prefixes(m.TCPFilter.Allowed)
	}
	return t
}

func fields(hs []HeaderValue) any {
	t := tree{}
	for _, h := range hs {
		t[h.Name] = h.shown()
	}
	return t
}

func providersTree(p Providers) any {
	t := tree{"file": nil, "discovery": nil, "docker": nil, "kubernetes": nil}
	if f := p.File; f != nil {
		t["file"] = tree{"watch": f.Watch, "directory": orNull(f.Directory)}
	}
	if d := p.Discovery; d != nil {
		seeds := []any{}
		for range d.Seeds {
			seeds = append(seeds, tree{"url": Redacted}) // may hold credentials
		}
		t["discovery"] = tree{"seeds": seeds, "poll_interval_secs": secs(d.PollInterval), "timeout_secs": secs(d.Timeout)}
	}
	if d := p.Docker; d != nil {
		t["docker"] = tree{"host": d.Host, "label_prefix": d.LabelPrefix, "poll_interval_secs": secs(d.PollInterval)}
	}
	if k := p.Kubernetes; k != nil {
		t["kubernetes"] = tree{
			"namespace": k.Namespace, "label_selector": k.LabelSelector,
			"watch_interval_secs": secs(k.WatchInterval), "ingress_route_crd": k.IngressRouteCRD,
		}
	}
	return t
}

func managementTree(m Management) any {
	var t any
	if m.TLS != nil {
		inner := sharedTLSTree(&m.TLS.TLS)
		inner["require_client_cert"] = m.TLS.RequireClientCert
		t = inner
	}
	return tree{
		"enabled": m.Enabled, "address": m.Address, "path_prefix": m.PathPrefix, "auth_token_env": m.TokenEnv,
		"allowed_ips": prefixes(m.AllowedIPs), "tls": t, "probe_address": orNull(m.ProbeAddress),
	}
}

func managedTree(m *Managed) any {
	t := tree{"gateway_id": nil, "state_file": nil}
	if m != nil {
		t["gateway_id"], t["state_file"] = orNull(m.GatewayID), orNull(m.StateFile)
		if u := m.UsageSpool; u != nil {
			t["usage_spool"] = tree{"directory": u.Directory, "max_bytes": u.MaxBytes}
		}
	}
	return t
}

// inferenceTree leaves the verifiers out.
func inferenceTree(p *Inference) any {
	credentials, routes := tree{}, tree{}
	for _, c := range p.Credentials {
		credentials[c.ID] = tree{
			"environment_id": c.EnvironmentID, "audience": c.Audience, "prefix": c.Prefix,
			"generation": c.Generation, "expires_at": c.ExpiresAt.Format(time.RFC3339), "revoked": c.Revoked,
		}
	}
	for _, r := range p.Routes {
		models, grants := tree{}, tree{}
		for _, m := range r.Models {
			targets := []any{}
			for _, t := range m.Targets {
				targets = append(targets, tree{
					"id": t.ID, "service": t.Service, "upstream_model": t.UpstreamModel,
					"priority": t.Priority, "weight": t.Weight,
				})
			}
			models[m.Alias] = tree{"model_id": m.ModelID, "targets": targets}
		}
		for _, g := range r.Grants {
			grants[g.CredentialID] = tree{
				"credential_generation": g.CredentialGeneration, "models": list(g.Models),
				"endpoints": list(g.Endpoints), "limits": tree{
					"max_concurrent_requests": g.Limits.MaxConcurrentRequests, "requests_per_minute": g.Limits.RequestsPerMinute,
					"request_burst": g.Limits.RequestBurst, "tokens_per_minute": g.Limits.TokensPerMinute,
				},
			}
		}
		routes[r.ID] = tree{
			"router": r.Router, "environment_id": r.EnvironmentID, "policy_revision": r.PolicyRevision,
			"models": models, "grants": grants,
		}
	}
	return tree{"expires_at": p.ExpiresAt.Format(time.RFC3339), "credentials": credentials, "routes": routes}
}
