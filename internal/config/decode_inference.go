package config

import (
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/sluice-proxy/sluice/internal/acl"
)

// inference decodes the authorization projection of a managed snapshot. Its scalars must be literal. References are
// not checked while nothing runs it.
func (d *decoder) inference(o *object, mode Mode) *Inference {
	if o == nil {
		return nil
	}
	if mode == Standalone {
		d.fail(CodeConflict, o.at, "inference needs mode cloud-managed")
	}
	o.literalOnly()
	p := &Inference{ExpiresAt: o.timestamp("expires_at")}
	for _, c := range o.many("credentials", 10_000) {
		p.Credentials = append(p.Credentials, d.credential(c))
	}
	for _, c := range o.many("routes", 1000) {
		p.Routes = append(p.Routes, d.inferenceRoute(c))
	}
	o.finish(nil)
	if mode == CloudManaged {
		d.later(o.at, "inference is", `this release runs mode { kind = "standalone" }`)
	}
	return p
}

// many returns up to most children of a name, each with one label that is unique among them.
func (o *object) many(name string, most int) []*object {
	all := o.children(name)
	if len(all) > most {
		o.d.fail(CodeRange, all[most].at, "%s has more than %d %s", o.title, most, name)
	}
	seen := map[string]bool{}
	for _, c := range all {
		c.kind = o.kind + " " + name
		c.literalOnly()
		if len(c.labels) != 1 {
			o.d.fail(CodeLabel, c.at, "%s needs exactly one label", c.title)
			continue
		}
		if id := strings.ToLower(c.labels[0].Text); seen[id] {
			o.d.fail(CodeDuplicate, c.labels[0].Span, "%s is defined twice", c.title)
		} else {
			seen[id] = true
		}
	}
	return all
}

// literalOnly reports calls: inference takes nothing that depends on where it is read.
func (o *object) literalOnly() {
	for _, f := range o.fields {
		if calls(f.val) {
			o.d.fail(CodeType, f.val.Span, "%s in %s must be literal: functions are not allowed in inference", f.key, o.title)
			f.val, f.reported = &acl.Value{Kind: acl.Null, Span: f.val.Span}, true
		}
	}
}

func calls(v *acl.Value) bool {
	return v.Kind == acl.Call || slices.ContainsFunc(v.List, calls)
}

// id returns the label of a block as a UUID.
func (o *object) id() string {
	if len(o.labels) == 0 {
		return ""
	}
	l := o.labels[0]
	return o.d.uuidOf(keyText(l.Text, l.Span), "the label of "+o.title)
}

// timestamp returns a required RFC 3339 time.
func (o *object) timestamp(key string) time.Time {
	t := o.str(key, true)
	if !t.ok {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339, t.s)
	if err != nil {
		o.d.bad(t, CodeValue, `%s in %s must be a timestamp such as "2026-12-31T00:00:00Z"`, key, o.title)
	}
	return at
}

// word returns a required text of 1 to 255 bytes without blanks around it or control characters.
func (o *object) word(key string) string {
	t := o.str(key, true)
	if t.ok {
		o.d.word(t, key+" in "+o.title)
	}
	return t.s
}

func (d *decoder) word(t text, what string) {
	if t.s == "" || len(t.s) > 255 || strings.TrimSpace(t.s) != t.s || strings.ContainsFunc(t.s, unicode.IsControl) {
		d.bad(t, CodeValue, "%s must be 1 to 255 bytes, without blanks around it or control characters", what)
	}
}

func (d *decoder) credential(o *object) Credential {
	c := Credential{ID: o.id(), EnvironmentID: o.uuid("environment_id", true)}
	audience := o.str("audience", true)
	if audience.ok && audience.s != "cloud-inference" {
		d.bad(audience, CodeEnum, "audience in %s must be cloud-inference", o.title)
	}
	c.Audience = audience.s
	prefix := o.str("prefix", true)
	if tail, ok := strings.CutPrefix(prefix.s, "a3s_inf_"); prefix.ok && (!ok || len(tail) < 8 || len(tail) > 32 || strings.ToLower(tail) != tail || strings.ContainsFunc(tail, func(r rune) bool { return r > 0x7f || !isAlnum(byte(r)) })) {
		prefix.secret = true // perhaps the key itself
		d.bad(prefix, CodeValue, "prefix in %s must be a3s_inf_ and 8 to 32 lower-case letters or digits", o.title)
	}
	c.Prefix = prefix.s
	hash := o.secret("verifier_hash", true)
	if hash.ok && !isVerifier(hash.s) {
		d.bad(hash, CodeValue, "verifier_hash in %s is not an Argon2id verifier within the allowed bounds", o.title)
	}
	c.VerifierHash = NewSecret(hash.s)
	c.Generation = o.required("generation", 1, math.MaxInt64)
	c.ExpiresAt = o.timestamp("expires_at")
	c.Revoked = o.boolean("revoked", false)
	if !o.written("revoked") {
		o.missing("revoked", "")
	}
	o.finish(nil)
	return c
}

// isVerifier checks the bounds of a PHC string.
func isVerifier(s string) bool {
	parts := strings.Split(s, "$")
	if len(s) > 512 || len(parts) != 6 || parts[0] != "" || parts[1] != "argon2id" || parts[2] != "v=19" {
		return false
	}
	bounds := map[string][2]uint64{"m": {19456, 262144}, "t": {2, 10}, "p": {1, 4}}
	for _, p := range strings.Split(parts[3], ",") {
		key, val, _ := strings.Cut(p, "=")
		b, ok := bounds[key]
		n, err := strconv.ParseUint(val, 10, 32)
		if !ok || err != nil || n < b[0] || n > b[1] {
			return false
		}
		delete(bounds, key)
	}
	return len(bounds) == 0 && isRawBase64(parts[4], 22) && isRawBase64(parts[5], 43)
}

func isRawBase64(s string, least int) bool {
	_, err := base64.RawStdEncoding.DecodeString(s)
	return err == nil && len(s) >= least && len(s) <= 86
}

func (d *decoder) inferenceRoute(o *object) InferenceRoute {
	r := InferenceRoute{ID: o.id(), Router: o.word("router"), EnvironmentID: o.uuid("environment_id", true)}
	r.PolicyRevision = o.required("policy_revision", 1, math.MaxInt64)
	for _, c := range o.many("models", 1000) {
		m := InferenceModel{ModelID: c.uuid("model_id", true)}
		if len(c.labels) > 0 {
			m.Alias = c.labels[0].Text
			d.word(keyText(m.Alias, c.labels[0].Span), "the label of "+c.title)
		}
		m.Targets = d.modelTargets(c)
		c.finish(nil)
		r.Models = append(r.Models, m)
	}
	if len(r.Models) == 0 {
		o.missing("models", "")
	}
	for _, c := range o.many("grants", 10_000) {
		r.Grants = append(r.Grants, d.grant(c))
	}
	o.finish(nil)
	return r
}

func (d *decoder) modelTargets(o *object) []ModelTarget {
	var out []ModelTarget
	next := uint64(0)
	for _, c := range o.many("targets", 32) {
		t := ModelTarget{ID: c.id(), Service: c.word("service"), UpstreamModel: c.word("upstream_model")}
		t.Priority = c.required("priority", 0, math.MaxUint32)
		t.Weight = c.required("weight", 1, math.MaxUint32)
		if t.Priority > next || len(out) > 0 && t.Priority < out[len(out)-1].Priority {
			d.fail(CodeRange, c.where("priority"), "priorities of targets must begin at 0 and ascend without a gap")
		}
		next = t.Priority + 1
		c.finish(nil)
		out = append(out, t)
	}
	if len(out) == 0 {
		o.missing("targets", "")
	}
	return out
}

func (d *decoder) grant(o *object) Grant {
	g := Grant{CredentialID: o.id(), CredentialGeneration: o.required("credential_generation", 1, math.MaxInt64)}
	set := func(key string, allowed ...string) []string {
		ts := o.list(key)
		var out []string
		for _, t := range ts {
			if slices.Contains(out, t.s) {
				d.bad(t, CodeDuplicate, "%s in %s has an item twice", key, o.title)
			}
			if len(allowed) > 0 && !slices.Contains(allowed, t.s) {
				d.bad(t, CodeEnum, "%s in %s must be among %s", key, o.title, strings.Join(allowed, ", "))
			}
			out = append(out, t.s)
		}
		if !written(o, key) {
			o.missing(key, "")
		}
		return out
	}
	g.Models = set("models")
	g.Endpoints = set("endpoints", "models", "chat-completions", "completions", "embeddings")
	l := o.child("limits")
	if l == nil {
		o.missing("limits", "")
	} else {
		l.kind = o.kind + " limits"
		l.literalOnly()
		n := func(key string) uint64 { return l.required(key, 1, math.MaxInt64) }
		g.Limits = Limits{n("max_concurrent_requests"), n("requests_per_minute"), n("request_burst"), n("tokens_per_minute")}
		if g.Limits.RequestBurst > g.Limits.RequestsPerMinute && g.Limits.RequestsPerMinute > 0 {
			d.fail(CodeRange, l.where("request_burst"), "%s", fmt.Sprintf("request_burst in %s must not exceed requests_per_minute", l.title))
		}
		l.finish(nil)
	}
	o.finish(nil)
	return g
}
