package egress_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-proxy/sluice/internal/egress"
)

func compile(t interface{ Fatalf(string, ...any) }, rules ...egress.Rule) *egress.Rules {
	r, err := egress.Compile(policy(rules...), "demo")
	if err != nil {
		t.Fatalf("compile: %v", err)
	}
	return r
}

func host(t interface{ Fatalf(string, ...any) }, s string) egress.Host {
	h, err := egress.ParseAuthority(s)
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return h
}

// TestKF_EGR_08_Patterns are the reference vectors, each decided in every way there is.
func TestKF_EGR_08_Patterns(t *testing.T) {
	for _, tc := range []struct {
		pattern, name string
		want          bool
	}{
		{"*", "anything.example.com", true},
		{"*", "localhost", true},
		{"*", "", false},
		{"*.example.com", "api.example.com", true},
		{"*.example.com", "API.Example.com", true},
		{"*.example.com", "api.example.com.", true},
		{"*.example.com", "_api.example.com", true},
		{"*.example.com", "example.com", false},
		{"*.example.com", "a.b.example.com", false},
		{"*.example.com", ".example.com", false},
		{"*.example.com", "xexample.com", false},
		{"*.example.com", "api.example.co", false},
		{"*.example.com", "api.example.com.evil", false},
		{"*.example.com", "api.example.com..", false},
		{"*.com", "example.com", true},
		{"*.com", "com", false},
		{"api.example.com", "api.example.com", true},
		{"api.example.com", "API.example.com", true},
		{"api.example.com", "api.example.com.", true},
		{"api.example.com", "www.api.example.com", false},
		{"api.example.com", "api.example.com..", false},
		{"kube.example", "\u212aube.example", false},
	} {
		h, err := egress.ParseName(tc.name)
		if err != nil && tc.want {
			t.Errorf("%q: %v", tc.name, err)
		}
		r := compile(t, http(on(80), tc.pattern), https(on(443), tc.pattern), passthrough(everywhere, tc.pattern))
		m, plain := r.Clear(h, 80)
		n, tls := r.TLS(h, 443)
		o, other := r.TLS(h, 444)
		if plain != tc.want || tls != tc.want || other != tc.want || r.Resolves(h) != tc.want {
			t.Errorf("%q with %q: %v %v %v %v, want %v", tc.pattern, tc.name, plain, tls, other, r.Resolves(h), tc.want)
		}
		if tc.want && (m.Kind != egress.HTTP || n.Kind != egress.HTTPS || o.Kind != egress.Passthrough || m.Pattern != tc.pattern) {
			t.Errorf("%q with %q is decided by %v, %v, %v", tc.pattern, tc.name, m, n, o)
		}
		mode := egress.ChooseTLS(h, []egress.TLSRule{{Pattern: tc.pattern, Mode: egress.ModePassthrough}})
		if (mode == egress.ModePassthrough) != tc.want {
			t.Errorf("%q with %q: mode %q, want a match %v", tc.pattern, tc.name, mode, tc.want)
		}
	}
}

func TestPrecedence(t *testing.T) {
	rules := []egress.Rule{
		0: https(everywhere, "*"),
		1: https(on(443), "*"),
		2: https(everywhere, "*.a.test"),
		3: passthrough(on(443), "*.a.test"),
		4: https(everywhere, "x.a.test"),
		5: passthrough(on(8443), "x.a.test"),
		6: http(nil, "x.a.test"),
		7: https(on(9), "y.a.test"),
	}
	r := compile(t, rules...)
	for _, tc := range []struct {
		name  string
		port  uint16
		clear int // index of the rule, -1 none
		tls   int
	}{
		{"x.a.test", 8443, -1, 5},
		{"x.a.test", 443, -1, 4}, // all ports of the exact name before this port of a wildcard
		{"x.a.test", 80, 6, 4},
		{"z.a.test", 443, -1, 3},
		{"z.a.test", 444, -1, 2},
		{"y.a.test", 9, -1, 7},
		{"y.a.test", 443, -1, 3}, // the exact name has no rule for this port
		{"b.test", 443, -1, 1},
		{"b.test", 1, -1, 0},
		{"a.test", 443, -1, 1},
		{"b.test", 0, -1, -1},
	} {
		m, plain := r.Clear(host(t, tc.name), tc.port)
		n, tls := r.TLS(host(t, tc.name), tc.port)
		if plain != (tc.clear >= 0) || plain && m.Rule != tc.clear || tls != (tc.tls >= 0) || tls && n.Rule != tc.tls {
			t.Errorf("%s:%d: clear %v %v, TLS %v %v; want rules %d and %d", tc.name, tc.port, m, plain, n, tls, tc.clear, tc.tls)
		}
	}
}

// An https rule never permits clear text to the name, and an http rule never TLS.
func TestI20_NoDowngrade(t *testing.T) {
	r := compile(t, https(everywhere, "tls.test"), http(everywhere, "plain.test"))
	if m, ok := r.Clear(host(t, "tls.test"), 443); ok {
		t.Errorf("clear text by %v", m)
	}
	if m, ok := r.TLS(host(t, "plain.test"), 443); ok {
		t.Errorf("TLS by %v", m)
	}
}

func TestAddresses(t *testing.T) {
	for _, in := range []string{"93.184.216.34", "[2001:db8::1]", "[::ffff:1.2.3.4]"} {
		h := host(t, in)
		r := compile(t, http(nil, "*"), passthrough(on(443), "*"), https(everywhere, "*"))
		if m, ok := r.Clear(h, 80); !ok || m.Rule != 0 {
			t.Errorf("%s in clear text: %v, %v", in, m, ok)
		}
		if m, ok := r.TLS(h, 443); !ok || m.Rule != 2 {
			t.Errorf("%s over TLS: %v, %v; an address cannot be passed through", in, m, ok)
		}
		if m, ok := compile(t, passthrough(everywhere, "*")).TLS(h, 443); ok {
			t.Errorf("%s is passed through by %v", in, m)
		}
		if r.Resolves(h) {
			t.Errorf("the address %s may be asked for", in)
		}
		if mode := egress.ChooseTLS(h, r.TLSRules(443)); mode != egress.ModeClose {
			t.Errorf("%s as SNI: %q", in, mode)
		}
	}
}

func TestNothingAllowed(t *testing.T) {
	for name, r := range map[string]*egress.Rules{"no policy": nil, "no rules": compile(t), "zero": {}} {
		h := host(t, "a.test")
		_, plain := r.Clear(h, 80)
		_, tls := r.TLS(h, 443)
		if plain || tls || r.Resolves(h) || len(r.TLSRules(443)) != 0 {
			t.Errorf("%s allows something", name)
		}
	}
}

func TestI19_Effects(t *testing.T) {
	rule := replacing(secret("Authorization"))
	r := compile(t, https(nil, "b.test"), rule)
	m, ok := r.TLS(host(t, "a.test"), 443)
	if diff := cmp.Diff(rule.HTTPS.Effects.ReplaceHeaders, m.Effects); !ok || diff != "" {
		t.Errorf("%v %s", ok, diff)
	}
	if m, ok := r.TLS(host(t, "b.test"), 443); !ok || m.Effects != nil {
		t.Errorf("the rule without effects has %v, %v", m.Effects, ok)
	}
}

func TestTLSRules(t *testing.T) {
	r := compile(t, https(nil, "*.example.com"), passthrough(on(443), "raw.example.org"), http(nil, "plain.test"), https(on(8443), "raw.example.org"), passthrough(everywhere, "*", "a.test"))
	want := []egress.TLSRule{{"a.test", "passthrough"}, {"raw.example.org", "passthrough"}, {"*.example.com", "mitm"}, {"*", "passthrough"}}
	if diff := cmp.Diff(want, r.TLSRules(443)); diff != "" {
		t.Error(diff)
	}
	want = []egress.TLSRule{{"a.test", "passthrough"}, {"raw.example.org", "mitm"}, {"*", "passthrough"}}
	if diff := cmp.Diff(want, r.TLSRules(8443)); diff != "" {
		t.Error(diff)
	}
	two := compile(t, https(nil, "*.example.com"), passthrough(on(443), "raw.example.org"))
	if got := two.TLSRules(8443); len(got) != 0 {
		t.Errorf("on another port there are %v", got)
	}
}

// The list of a port is made once, also when many ask at the same time; ports that no rule names share one.
func TestTLSRulesAreRemembered(t *testing.T) {
	var numbers []int32
	for port := range int32(40) {
		numbers = append(numbers, 1000+port)
	}
	r := compile(t, https(everywhere, "a.test"), https(on(numbers[:16]...), "b.test"), https(on(numbers[16:32]...), "c.test"), https(on(numbers[32:]...), "d.test"))
	first := func(port uint16) *egress.TLSRule { return &r.TLSRules(port)[0] }
	other, named := first(1), first(1000)
	if other != first(2) || named != first(1000) || named == first(1001) || other == named {
		t.Error("lists are not shared as they should be")
	}
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			for port := uint16(1000); port < 1040; port++ { // more than are remembered
				want := []egress.TLSRule{{"a.test", "mitm"}, {[]string{"b.test", "c.test", "d.test"}[(port-1000)/16], "mitm"}}
				if diff := cmp.Diff(want, r.TLSRules(port)); diff != "" {
					t.Errorf("%d: %s", port, diff)
				}
			}
		})
	}
	asking.Wait()
}

func TestChooseTLS(t *testing.T) {
	h := host(t, "api.example.com")
	for name, tc := range map[string]struct {
		sni   egress.Host
		rules []egress.TLSRule
		want  egress.Mode
	}{
		"the first that matches":       {h, []egress.TLSRule{{"x.test", "passthrough"}, {"*", "passthrough"}, {"api.example.com", "mitm"}}, "passthrough"},
		"none":                         {h, []egress.TLSRule{{"x.test", "mitm"}}, ""},
		"no rules":                     {h, nil, ""},
		"no SNI":                       {egress.Host{}, []egress.TLSRule{{"*", "mitm"}}, ""},
		"a mode that is not known":     {h, []egress.TLSRule{{"*", "MITM"}}, ""},
		"it is not passed over either": {h, []egress.TLSRule{{"*.example.com", "other"}, {"*", "mitm"}}, ""},
		"an empty mode":                {h, []egress.TLSRule{{"*", ""}, {"*", "mitm"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := egress.ChooseTLS(tc.sni, tc.rules); got != tc.want {
				t.Errorf("mode %q, want %q", got, tc.want)
			}
		})
	}
}

// The twin looks at every pattern of every rule, and takes the narrowest.

func twinMatches(pattern, name string) int {
	labels := strings.Split(pattern, ".")
	have := strings.Split(name, ".")
	switch {
	case pattern == "*":
		return 1
	case labels[0] == "*" && len(labels) == len(have) && strings.Join(labels[1:], ".") == strings.Join(have[1:], "."):
		return 2
	case pattern == name:
		return 3
	}
	return 0
}

type twinRule struct {
	kind  egress.Kind
	names []string
	ports *egress.Ports
}

func twinOf(r egress.Rule) twinRule {
	switch {
	case r.HTTP != nil:
		return twinRule{egress.HTTP, r.HTTP.Hostnames, r.HTTP.Ports}
	case r.HTTPS != nil:
		return twinRule{egress.HTTPS, r.HTTPS.Hostnames, r.HTTPS.Ports}
	}
	return twinRule{egress.Passthrough, r.Passthrough.Hostnames, r.Passthrough.Ports}
}

// twinDecide returns the deciding rule and its pattern, or -1.
func twinDecide(rules []egress.Rule, clear bool, h egress.Host, port uint16) (int, string) {
	best, rule, pattern := 0, -1, ""
	for i, r := range rules {
		w := twinOf(r)
		if (w.kind == egress.HTTP) != clear || w.kind == egress.Passthrough && h.Name() == "" {
			continue
		}
		rank := 0
		switch {
		case w.ports == nil && (clear && port == 80 || !clear && port == 443):
			rank = 1
		case w.ports == nil:
			continue
		case w.ports.All:
		default:
			for _, n := range w.ports.Numbers {
				if int(n) == int(port) {
					rank = 1
				}
			}
			if rank == 0 {
				continue
			}
		}
		for _, p := range w.names {
			m := twinMatches(p, h.Name())
			if h.Name() == "" && p != "*" {
				m = 0
			}
			if m > 0 && m*2+rank > best {
				best, rule, pattern = m*2+rank, i, p
			}
		}
	}
	return rule, pattern
}

var (
	genPattern = rapid.SampledFrom([]string{"*", "*.a", "*.b.a", "a", "b.a", "c.b.a", "*.c", "c"})
	genHost    = rapid.SampledFrom([]string{"a", "b.a", "c.b.a", "d.b.a", "x.a", "c", "y.c", "z.y.c", "1.2.3.4", "[::1]"})
	genPorts   = rapid.SampledFrom([]*egress.Ports{nil, everywhere, on(80), on(443), on(80, 443), on(7, 443)})
	genPort    = rapid.SampledFrom([]uint16{7, 80, 443, 8443})
)

func genRule(t *rapid.T) egress.Rule {
	names := rapid.SliceOfNDistinct(genPattern, 1, 3, rapid.ID[string]).Draw(t, "names")
	ports := genPorts.Draw(t, "ports")
	switch rapid.IntRange(0, 2).Draw(t, "kind") {
	case 0:
		return http(ports, names...)
	case 1:
		return https(ports, names...)
	}
	if ports == nil {
		ports = everywhere
	}
	return passthrough(ports, names...)
}

// tied reports whether two rules can decide the same with the same pattern.
func tied(a, b egress.Rule) bool {
	v, w := twinOf(a), twinOf(b)
	if (v.kind == egress.HTTP) != (w.kind == egress.HTTP) {
		return false
	}
	def := int32(443)
	if v.kind == egress.HTTP {
		def = 80
	}
	set := func(p *egress.Ports) map[int32]bool {
		switch {
		case p == nil:
			return map[int32]bool{def: true}
		case p.All:
			return map[int32]bool{0: true}
		}
		m := map[int32]bool{}
		for _, n := range p.Numbers {
			m[n] = true
		}
		return m
	}
	ports := set(w.ports)
	for _, x := range v.names {
		for _, y := range w.names {
			for n := range set(v.ports) {
				if x == y && ports[n] {
					return true
				}
			}
		}
	}
	return false
}

func TestRulesTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var rules []egress.Rule
		for range rapid.IntRange(0, 12).Draw(t, "rules") {
			r, tie := genRule(t), false
			for _, other := range rules {
				tie = tie || tied(other, r)
			}
			_, err := egress.Compile(policy(append(rules[:len(rules):len(rules)], r)...), "demo")
			if (err != nil) != tie {
				t.Fatalf("adding %+v to %+v: %v, a tie: %v", r, rules, err, tie)
			}
			if !tie {
				rules = append(rules, r)
			}
		}
		r := compile(t, rules...)
		for range 20 {
			checkDecisions(t, rules, r, host(t, genHost.Draw(t, "host")), genPort.Draw(t, "port"))
		}
	})
}

func checkDecisions(t *rapid.T, rules []egress.Rule, r *egress.Rules, h egress.Host, port uint16) {
	for _, clear := range []bool{true, false} {
		decide := r.TLS
		if clear {
			decide = r.Clear
		}
		m, ok := decide(h, port)
		rule, pattern := twinDecide(rules, clear, h, port)
		if ok != (rule >= 0) || ok && (m.Rule != rule || m.Pattern != pattern || m.Kind != twinOf(rules[rule]).kind) {
			t.Fatalf("%v:%d clear %v in %+v: %+v %v; the twin finds rule %d by %q", h, port, clear, rules, m, ok, rule, pattern)
		}
		if clear || h.Name() == "" {
			continue
		}
		want := map[egress.Kind]egress.Mode{0: egress.ModeClose, egress.HTTPS: egress.ModeIntercept, egress.Passthrough: egress.ModePassthrough}[m.Kind]
		if mode := egress.ChooseTLS(h, r.TLSRules(port)); mode != want {
			t.Fatalf("%v:%d in %+v: mode %q by the list of the port, %q by the rule %+v", h, port, rules, mode, want, m)
		}
	}
	resolves := false
	for _, rule := range rules {
		for _, p := range twinOf(rule).names {
			resolves = resolves || h.Name() != "" && twinMatches(p, h.Name()) > 0
		}
	}
	if r.Resolves(h) != resolves {
		t.Fatalf("%v in %+v resolves: %v, want %v", h, rules, r.Resolves(h), resolves)
	}
}

// FuzzPattern compares one pattern and one name in every way of deciding.
func FuzzPattern(f *testing.F) {
	f.Add("*.example.com", "api.example.com")
	f.Add("*", "1.2.3.4")
	f.Add("a", "A.")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		r, err := egress.Compile(policy(https(everywhere, pattern), http(everywhere, pattern)), "demo")
		if err != nil {
			return
		}
		if h, err := egress.ParseName(strings.TrimPrefix(pattern, "*.")); pattern != "*" && (err != nil || h.Name() != strings.TrimPrefix(pattern, "*.")) {
			t.Fatalf("the pattern %q is accepted, and no name is of its form: %v, %v", pattern, h, err)
		}
		h, err := egress.ParseAuthority(text)
		if err != nil {
			return
		}
		want := pattern == "*" || h.Name() != "" && twinMatches(pattern, h.Name()) > 0
		_, tls := r.TLS(h, 1)
		_, plain := r.Clear(h, 1)
		if tls != want || plain != want || h.Name() != "" && r.Resolves(h) != want {
			t.Fatalf("%q with %q: %v %v, want %v", pattern, text, tls, plain, want)
		}
	})
}

func TestDecidingAllocatesNothing(t *testing.T) {
	r := compile(t, https(nil, "*.example.com"), https(on(8443), "*"))
	h := host(t, "api.example.com")
	if n := testing.AllocsPerRun(100, func() {
		r.TLS(h, 443)
		r.Clear(h, 80)
		r.Resolves(h)
	}); n != 0 {
		t.Errorf("deciding allocates %v times", n)
	}
}

func BenchmarkTLS(b *testing.B) {
	rules := make([]egress.Rule, egress.MaxRules)
	for i := range rules {
		names := make([]string, egress.MaxHostnames)
		for j := range names {
			names[j] = fmt.Sprintf("*.n%d-%d.test", i, j)
		}
		rules[i] = https(on(443, 8443), names...)
	}
	r, err := egress.Compile(policy(rules...), "demo")
	if err != nil {
		b.Fatal(err)
	}
	h, _ := egress.ParseName("api.n255-255.test")
	for b.Loop() {
		if _, ok := r.TLS(h, 443); !ok {
			b.Fatal("no match")
		}
	}
}
