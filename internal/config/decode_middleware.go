package config

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// middlewareType is one type of middleware: its keys, for hints about keys of another type, its reader, and what is
// said when this release does not run it.
type middlewareType struct {
	name   string
	keys   []string
	later  string // "" when this release runs it
	decode func(d *decoder, o *object, m *Middleware)
}

// middlewareTypes is the list of all types. A new one is a line here and a reader.
var middlewareTypes = []middlewareType{
	{"rate-limit", []string{"rate", "burst", "per"}, "", (*decoder).rateLimit},
	{"headers", []string{"request_headers", "response_headers"}, "", (*decoder).headers},
	{"strip-prefix", []string{"prefixes"}, "", (*decoder).stripPrefix},
	{"jwt", []string{"header", "value"}, "middleware type jwt is", (*decoder).jwt},
	{"api-key", []string{"header", "keys"}, "middleware type api-key is", (*decoder).apiKey},
	{"basic-auth", []string{"username", "password"}, "middleware type basic-auth is", (*decoder).basicAuth},
	{"forward-auth", []string{"forward_auth_url", "forward_auth_response_headers"}, "middleware type forward-auth is", (*decoder).forwardAuth},
	{"rate-limit-redis", []string{"rate", "burst", "redis_url"}, "middleware type rate-limit-redis is", (*decoder).rateLimitRedis},
	{"cors", []string{"allowed_origins", "allowed_methods", "allowed_headers", "max_age"}, "middleware type cors is", (*decoder).cors},
	{"body-limit", []string{"max_body_bytes"}, "middleware type body-limit is", (*decoder).bodyLimit},
	{"retry", []string{"max_retries", "retry_interval_ms"}, "middleware type retry is", (*decoder).retry},
	{"circuit-breaker", []string{"failure_threshold", "cooldown_secs", "success_threshold"}, "middleware type circuit-breaker is", (*decoder).circuitBreaker},
	{"ip-allow", []string{"allowed_ips"}, "middleware type ip-allow is", (*decoder).ipAllow},
	{"compress", nil, "middleware type compress is", func(*decoder, *object, *Middleware) {}},
	{"tcp-filter", []string{"max_connections", "allowed_ips"}, "", (*decoder).tcpFilter},
}

const runningTypes = "this release runs the types rate-limit, headers, strip-prefix and tcp-filter"

func (d *decoder) middleware(name string, o *object) *Middleware {
	o.kind = "middlewares"
	m := &Middleware{Name: name, Pos: o.at}
	if slices.Contains(d.registered, name) {
		d.fail(CodeConflict, o.at, "%s has the name of a middleware that the program brings along", o.title)
	}
	t := o.str("type", true)
	i := slices.IndexFunc(middlewareTypes, func(mt middlewareType) bool { return mt.name == t.s })
	if !t.ok || i < 0 {
		if t.ok {
			d.unknownType(t, o)
		}
		return m // without a type nothing says which keys are right
	}
	mt := middlewareTypes[i]
	m.Type = mt.name
	o.kind = "middlewares " + mt.name
	mt.decode(d, o, m)
	o.finish(func(key string, at acl.Span) bool { return d.otherType(key, at, mt, o) })
	if mt.later != "" {
		d.later(t.at, mt.later, runningTypes)
	}
	return m
}

func (d *decoder) unknownType(t text, o *object) {
	names := make([]string, len(middlewareTypes))
	for i, mt := range middlewareTypes {
		names[i] = mt.name
	}
	diag := d.bad(t, CodeEnum, "type in %s is no middleware type: %s", o.title, t.quote())
	if near := acl.Suggest(t.s, names); near != "" {
		diag.Hint = "did you mean " + strconv.Quote(near) + "?"
	} else {
		slices.Sort(names)
		diag.Hint = "the types are " + strings.Join(names, ", ")
	}
}

// otherType explains a key that belongs to other types only.
func (d *decoder) otherType(key string, at acl.Span, is middlewareType, o *object) bool {
	var owners []string
	for _, mt := range middlewareTypes {
		if slices.Contains(mt.keys, key) {
			owners = append(owners, mt.name)
		}
	}
	if len(owners) == 0 {
		return false
	}
	diag := d.fail(CodeOtherType, at, "%s in %s is a key of type %s and has no effect on type %s",
		key, o.title, strings.Join(owners, " and "), is.name)
	if len(is.keys) > 0 {
		diag.Hint = "type " + is.name + " has the keys " + strings.Join(is.keys, ", ")
	}
	return true
}

func (d *decoder) bucket(o *object) RateLimit {
	r := RateLimit{Rate: o.required("rate", 0, math.MaxUint64)}
	r.Burst = o.number("burst", r.Rate, 0, math.MaxUint64)
	return r
}

func (d *decoder) rateLimit(o *object, m *Middleware) {
	before := len(d.diags)
	r := d.bucket(o)
	var per text
	r.Per, per = enum(o, "per", PerRouter, PerRouter, PerIdentity)
	m.RateLimit = &r
	if r.Per == PerIdentity && r.Rate == 0 && len(d.diags) == before {
		d.bad(per, CodeRange, "rate of %s is 0: what each identity has used would have to be known for ever", o.title).Hint = "with per = \"identity\" the rate is 1 or more"
	}
	if r.Burst == 0 && len(d.diags) == before {
		d.warn(WarnNoTraffic, o.at, "%s refuses every request: its bucket holds no token", o.title)
	}
}

func (d *decoder) headers(o *object, m *Middleware) {
	m.Headers = &Headers{Request: o.headerMap("request_headers", false), Response: o.headerMap("response_headers", true)}
	if !o.has("request_headers") && !o.has("response_headers") {
		d.warn(WarnNoEffect, o.at, "%s sets no field", o.title)
	}
}

func (d *decoder) stripPrefix(o *object, m *Middleware) {
	m.StripPrefix = &StripPrefix{}
	for _, t := range o.list("prefixes") {
		if !strings.HasPrefix(t.s, "/") || strings.ContainsAny(t.s, "?# \t\r\n\x00") {
			d.bad(t, CodeValue, "prefixes in %s: an item must begin with / and hold no query, fragment, blank or control character", o.title)
			continue
		}
		if strings.Contains(strings.TrimSuffix(t.s, "/*"), "*") {
			d.bad(t, CodeValue, "prefixes in %s: * stands for one segment, at the end only", o.title).Hint = `write "/base/*"`
			continue
		}
		m.StripPrefix.Prefixes = append(m.StripPrefix.Prefixes, t.s)
	}
	if !o.has("prefixes") {
		d.warn(WarnNoEffect, o.at, "%s removes nothing: it has no prefixes", o.title)
	}
}

// fieldName returns a key that names a header field.
func (o *object) fieldName(key, def string) string {
	t := o.str(key, false)
	if !t.ok {
		return def
	}
	if !isToken(t.s) {
		o.d.bad(t, CodeValue, "%s in %s is not a legal field name", key, o.title)
		return def
	}
	return t.s
}

// nonEmpty reports a required secret that is empty.
func (o *object) nonEmpty(key string) Secret {
	t := o.secret(key, true)
	if t.ok && t.s == "" {
		o.d.bad(t, CodeMissing, "%s in %s is empty", key, o.title)
	}
	return NewSecret(t.s)
}

func (d *decoder) jwt(o *object, m *Middleware) {
	m.JWT = &JWT{Header: o.fieldName("header", "Authorization"), Value: o.nonEmpty("value")}
}

func (d *decoder) apiKey(o *object, m *Middleware) {
	m.APIKey = &APIKey{Header: o.fieldName("header", "X-API-Key")}
	for _, t := range o.secrets("keys") {
		if t.s == "" {
			d.bad(t, CodeMissing, "keys in %s has an empty item", o.title)
			continue
		}
		m.APIKey.Keys = append(m.APIKey.Keys, NewSecret(t.s))
	}
	if !written(o, "keys") {
		o.missing("keys", "give at least one key")
	}
}

func (d *decoder) basicAuth(o *object, m *Middleware) {
	m.BasicAuth = &BasicAuth{Username: o.str("username", true).s, Password: NewSecret(o.secret("password", true).s)}
}

func (d *decoder) forwardAuth(o *object, m *Middleware) {
	t := o.secret("forward_auth_url", true)
	if t.ok {
		d.webURL(t, "forward_auth_url in "+o.title)
	}
	m.ForwardAuth = &ForwardAuth{URL: NewSecret(t.s)}
	for _, h := range o.list("forward_auth_response_headers") {
		if !isToken(h.s) {
			d.bad(h, CodeValue, "forward_auth_response_headers in %s has an item that is not a legal field name", o.title)
		}
		m.ForwardAuth.ResponseHeaders = append(m.ForwardAuth.ResponseHeaders, h.s)
	}
}

func (d *decoder) rateLimitRedis(o *object, m *Middleware) {
	m.RateLimitRedis = &RateLimitRedis{RateLimit: d.bucket(o)}
	t := o.secret("redis_url", true)
	if t.ok && !strings.HasPrefix(t.s, "redis://") && !strings.HasPrefix(t.s, "rediss://") && !strings.HasPrefix(t.s, "unix://") {
		d.bad(t, CodeURL, "redis_url in %s must begin with redis://, rediss:// or unix://", o.title)
	}
	m.RateLimitRedis.URL = NewSecret(t.s)
}

func (d *decoder) cors(o *object, m *Middleware) {
	or := func(key string, check func(string) bool, def ...string) []string {
		ts := o.list(key)
		if !o.written(key) {
			return def
		}
		for _, t := range ts {
			if !check(t.s) {
				d.bad(t, CodeValue, "%s in %s has an illegal item", key, o.title)
			}
		}
		return plain(ts)
	}
	origin := func(s string) bool { return s != "" && badHeaderValue(s) == "" }
	m.CORS = &CORS{
		Origins: or("allowed_origins", origin, "*"),
		Methods: or("allowed_methods", isToken, "GET", "POST", "PUT", "DELETE", "OPTIONS"),
		Headers: or("allowed_headers", isToken, "Content-Type", "Authorization"),
		MaxAge:  o.seconds("max_age", 86400, 0),
	}
}

func (d *decoder) bodyLimit(o *object, m *Middleware) {
	m.BodyLimit = &BodyLimit{MaxBytes: o.required("max_body_bytes", 1, math.MaxInt64)}
}

func (d *decoder) retry(o *object, m *Middleware) {
	m.Retry = &Retry{MaxRetries: o.count("max_retries", 3, 1, math.MaxUint32), Interval: o.millis("retry_interval_ms", 100, 0)}
}

func (d *decoder) circuitBreaker(o *object, m *Middleware) {
	m.CircuitBreaker = &CircuitBreaker{
		FailureThreshold: o.count("failure_threshold", 5, 0, math.MaxUint32),
		Cooldown:         o.seconds("cooldown_secs", 30, 0),
		SuccessThreshold: o.count("success_threshold", 1, 0, math.MaxUint32),
	}
}

func (d *decoder) ipAllow(o *object, m *Middleware) {
	m.IPAllow = &IPAllow{Allowed: o.prefixes("allowed_ips")}
	if !written(o, "allowed_ips") {
		o.missing("allowed_ips", "give at least one IP or CIDR")
	}
}

func (d *decoder) tcpFilter(o *object, m *Middleware) {
	m.TCPFilter = &TCPFilter{MaxConnections: o.count("max_connections", 0, 1, math.MaxUint32), Allowed: o.prefixes("allowed_ips")}
	if m.TCPFilter.MaxConnections == 0 && len(m.TCPFilter.Allowed) == 0 && !o.has("max_connections") && !o.has("allowed_ips") {
		o.missing("max_connections or allowed_ips", "")
	}
}
