package config

import (
	"math"
	"net/url"
	"strings"
	"unicode"
)

// plannedService decodes the children of a service that this release does not run.
func (d *decoder) plannedService(o *object, s *Service) {
	if c := o.child("failover"); c != nil {
		s.Failover = c.str("service", true).s
		c.finish(nil)
		d.later(c.at, "failover is", "this release tries the other servers of the same service")
	}
	if c := o.child("mirror"); c != nil {
		s.Mirror = &Mirror{Service: c.str("service", true).s, Percentage: min(c.count("percentage", 100, 0, math.MaxUint8), 100)}
		c.finish(nil)
		d.later(c.at, "mirroring is", "this release sends each request to one service")
	}
	d.revisions(o, s)
	if c := o.child("rollout"); c != nil {
		s.Rollout = d.rollout(c)
	}
	if c := o.child("scaling"); c != nil {
		s.Scaling = d.scaling(c)
		d.later(c.at, "scaling is", "this release balances over the servers that are written")
	}
}

func (d *decoder) revisions(o *object, s *Service) {
	all := o.children("revisions", "revision")
	names := map[string]bool{}
	sum := 0
	for i, c := range all {
		c.kind, c.title = "revisions", "revisions"
		name, at, ok := c.name()
		c.title += " of " + o.title
		if ok && names[name] {
			d.fail(CodeDuplicate, at, "%s is defined twice", c.title)
		}
		names[name] = true
		r := Revision{Name: name, TrafficPercent: c.count("traffic_percent", 100, 0, 100), Servers: d.servers(c)}
		r.Strategy, _ = enum(c, "strategy", RoundRobin, RoundRobin, Weighted, LeastConnections, Random)
		if len(r.Servers) == 0 && !written(c, "servers", "server") {
			c.missing("servers", "")
		}
		c.finish(nil)
		sum += r.TrafficPercent
		s.Revisions = append(s.Revisions, r)
		if i == 0 {
			d.later(c.at, "revisions are", "this release balances over load_balancer { servers … } with weights")
		}
	}
	if len(all) > 0 && sum != 100 {
		d.fail(CodeRange, all[0].at, "traffic_percent of all revisions of %s must sum to 100, not %d", o.title, sum)
	}
}

func (d *decoder) rollout(o *object) *Rollout {
	r := &Rollout{From: o.str("from", true).s, To: o.str("to", true).s}
	r.StepPercent = o.count("step_percent", 10, 1, 100)
	r.StepInterval = o.seconds("step_interval_secs", 60, 1)
	r.ErrorRateThreshold = o.float("error_rate_threshold", 0.05, "between 0 and 1", func(f float64) bool { return f >= 0 && f <= 1 })
	r.LatencyThreshold = o.millis("latency_threshold_ms", 5000, 1)
	o.finish(nil)
	d.later(o.at, "rollout is", "use static revisions with traffic_percent, once they are supported; a controller moves the percentages")
	return r
}

// boxDiscovery reports whether the backends of a service come from its executor.
func (s *Service) boxDiscovery() bool {
	return s.Scaling != nil && s.Scaling.Executor == "box" && s.Scaling.ContainerConcurrency > 0
}

func (d *decoder) scaling(o *object) *Scaling {
	s := &Scaling{
		MinReplicas:          o.count("min_replicas", 0, 0, math.MaxUint32),
		MaxReplicas:          o.count("max_replicas", 10, 0, math.MaxUint32),
		ContainerConcurrency: o.count("container_concurrency", 0, 0, math.MaxUint32),
		TargetUtilization: o.float("target_utilization", 0.7, "greater than 0 and at most 1",
			func(f float64) bool { return f > 0 && f <= 1 }),
		ScaleDownDelay:  o.seconds("scale_down_delay_secs", 300, 0),
		BufferEnabled:   o.boolean("buffer_enabled", false),
		BufferTimeout:   o.seconds("buffer_timeout_secs", 30, 1),
		BufferSize:      o.count("buffer_size", 100, 1, math.MaxUint32),
		ExecutorTimeout: o.seconds("executor_timeout_secs", 30, 1),
	}
	s.Executor, _ = enum(o, "executor", "box", "box", "k8s")
	s.ExecutorEndpoint = "http://127.0.0.1:9090"
	if t := o.str("executor_endpoint", false); t.ok {
		s.ExecutorEndpoint = t.s
		if s.Executor == "box" {
			d.webURL(t, "executor_endpoint in "+o.title)
		}
	}
	if s.MinReplicas > s.MaxReplicas {
		d.fail(CodeRange, o.where("min_replicas"), "min_replicas in %s must not exceed max_replicas, which is %d", o.title, s.MaxReplicas)
	}
	if s.BufferEnabled && s.ContainerConcurrency == 0 {
		d.fail(CodeConflict, o.where("buffer_enabled"), "buffer_enabled in %s needs container_concurrency above 0", o.title)
	}
	o.finish(nil)
	return s
}

// webURL reports a text that is not an absolute http or https URL with a host. Such a URL may hold credentials, so it
// is never shown.
func (d *decoder) webURL(t text, what string) {
	u, err := url.Parse(t.s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		t.secret = true
		d.bad(t, CodeURL, "%s must be an absolute http or https URL with a host", what)
	}
}

// target decodes the managed identity of a server.
func (d *decoder) target(o *object) *Target {
	t := &Target{TargetID: o.uuid("target_id", true)}
	unit := o.str("unit_id", true)
	if unit.ok && (unit.s == "" || len(unit.s) > 512 || strings.ContainsFunc(unit.s, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) })) {
		d.bad(unit, CodeValue, "unit_id in %s must be 1 to 512 bytes without blanks or control characters", o.title)
	}
	t.UnitID = unit.s
	t.Generation = o.required("generation", 1, 1<<53-1)
	o.finish(nil)
	d.later(o.at, "the target identity of a server is", "it belongs to mode cloud-managed")
	return t
}

// uuid returns a UUID key in canonical spelling. The nil UUID is refused.
func (o *object) uuid(key string, required bool) string {
	t := o.str(key, required)
	if !t.ok {
		return ""
	}
	return o.d.uuidOf(t, key+" in "+o.title)
}

// uuidOf checks the 8-4-4-4-12 form of RFC 9562.
func (d *decoder) uuidOf(t text, what string) string {
	s := strings.ToLower(t.s)
	ok := len(s) == 36
	for i := 0; ok && i < 36; i++ {
		switch i {
		case 8, 13, 18, 23:
			ok = s[i] == '-'
		default:
			ok = s[i] >= '0' && s[i] <= '9' || s[i] >= 'a' && s[i] <= 'f'
		}
	}
	switch {
	case !ok:
		d.bad(t, CodeValue, "%s is not a UUID", what)
	case strings.Trim(s, "0-") == "":
		d.bad(t, CodeValue, "%s must not be the nil UUID", what)
	default:
		return s
	}
	return ""
}
