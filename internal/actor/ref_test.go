package actor_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-proxy/sluice/internal/actor"
)

var label63 = strings.Repeat("a", 63)

// refVectors are references and what is none.
var refVectors = []struct {
	in   string
	want actor.Ref // zero: refused
}{
	{"demo/a", actor.Ref{Atespace: "demo", Name: "a"}},
	{"d-1/a-b-c", actor.Ref{Atespace: "d-1", Name: "a-b-c"}},
	{"0/9", actor.Ref{Atespace: "0", Name: "9"}},
	{"a--b/c", actor.Ref{Atespace: "a--b", Name: "c"}},
	{label63 + "/" + label63, actor.Ref{Atespace: label63, Name: label63}},

	{"", actor.Ref{}},
	{"/", actor.Ref{}},
	{"demo", actor.Ref{}},
	{"/a", actor.Ref{}},
	{"demo/", actor.Ref{}},
	{"a/", actor.Ref{}},
	{"demo/a/b", actor.Ref{}},
	{"demo/a/", actor.Ref{}},
	{"/demo/a", actor.Ref{}},
	{"demo//a", actor.Ref{}},
	{"Demo/a", actor.Ref{}},
	{"A B/c", actor.Ref{}},
	{"demo/a_b", actor.Ref{}},
	{"demo/a.b", actor.Ref{}},
	{"ns/name.evil.com", actor.Ref{}},
	{"../x", actor.Ref{}},
	{"-d/a", actor.Ref{}},
	{"d-/a", actor.Ref{}},
	{"demo/-", actor.Ref{}},
	{"demo /a", actor.Ref{}},
	{"demo/ a", actor.Ref{}},
	{" demo/a", actor.Ref{}},
	{"demo/a ", actor.Ref{}},
	{"\tdemo/a", actor.Ref{}},
	{"demo%2fa", actor.Ref{}},
	{"demo%2Fa", actor.Ref{}},
	{"demo/%61", actor.Ref{}},
	{`demo\a`, actor.Ref{}},
	{"demo/a,demo/b", actor.Ref{}},
	{"demo/a, demo/b", actor.Ref{}},
	{label63 + "a/a", actor.Ref{}},
	{"a/" + label63 + "a", actor.Ref{}},
	{strings.Repeat("a", 300) + "/a", actor.Ref{}},
	{"démo/a", actor.Ref{}},
	{"demo/\u212a", actor.Ref{}}, // the Kelvin sign, which some foldings make a k
	{"demo/a\x00", actor.Ref{}},
	{"demo\x00/a", actor.Ref{}},
	{"demo/a\n", actor.Ref{}},
	{"demo/a\r\n", actor.Ref{}},
	{"demo/\xff", actor.Ref{}},
	{"[::1]/a", actor.Ref{}},
	{"demo/a:80", actor.Ref{}},
	{"demo/a?x", actor.Ref{}},
	{"demo/a#x", actor.Ref{}},
}

func TestParseRef(t *testing.T) {
	for _, v := range refVectors {
		r, err := actor.ParseRef(v.in)
		if r != v.want || (err == nil) != (v.want != actor.Ref{}) || err != nil && !errors.Is(err, actor.ErrRef) {
			t.Errorf("ParseRef(%q) = %v, %v; want %v", v.in, r, err, v.want)
		}
		if err == nil && r.String() != v.in {
			t.Errorf("ParseRef(%q).String() = %q", v.in, r)
		}
	}
}

// The twins of the grammar are regular expressions.
const labelTwin = `[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?`

var (
	nameTwin = regexp.MustCompile(`\A` + labelTwin + `\z`)
	refTwin  = regexp.MustCompile(`\A(` + labelTwin + `)/(` + labelTwin + `)\z`)
)

// nearRef makes texts that are references about as often as not.
var nearRef = rapid.OneOf(
	rapid.StringMatching(labelTwin+"/"+labelTwin),
	rapid.StringMatching(`[a-b0-]{0,3}/?[a-b0-]{0,3}/?[A-Bé /]?`),
	rapid.StringMatching(`[a-c-]{60,66}/[a-c]{1,2}`),
	rapid.String(),
)

func TestRefTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { checkRef(t, nearRef.Draw(t, "text")) })
}

func checkRef(t interface{ Fatalf(string, ...any) }, s string) {
	var want actor.Ref
	if m := refTwin.FindStringSubmatch(s); m != nil {
		want = actor.Ref{Atespace: m[1], Name: m[2]}
	}
	r, err := actor.ParseRef(s)
	if r != want || (err == nil) != (want != actor.Ref{}) {
		t.Fatalf("ParseRef(%q) = %v, %v; the twin finds %v", s, r, err, want)
	}
	if got := actor.ValidName(s); got != nameTwin.MatchString(s) {
		t.Fatalf("ValidName(%q) = %v", s, got)
	}
}

func FuzzParseRef(f *testing.F) {
	for _, v := range refVectors {
		f.Add(v.in)
	}
	f.Fuzz(func(t *testing.T, s string) { checkRef(t, s) })
}

func TestRefCheck(t *testing.T) {
	if f := (actor.Ref{Atespace: "demo", Name: "a"}).Check("actor"); f.Err() != nil {
		t.Errorf("a valid reference has faults: %v", f)
	}
	err := actor.Ref{Atespace: "Demo"}.Check("actor").Err()
	const reason = " is not 1 to 63 lower-case letters, digits and hyphens with a letter or digit at both ends"
	want := `actor.atespace: "Demo"` + reason + `; actor.name: ""` + reason
	if err == nil || err.Error() != want {
		t.Errorf("the faults are %v, want %s", err, want)
	}
}

func TestFaultsAreBounded(t *testing.T) {
	var f actor.Faults
	for range 1000 {
		f.Add("field", "is %d", 1)
	}
	if len(f) != 100 {
		t.Errorf("%d faults are kept, want 100", len(f))
	}
	if diff := cmp.Diff(actor.Fault{Field: "field", Reason: "is 1"}, f[99]); diff != "" {
		t.Error(diff)
	}
}

func TestParseTarget(t *testing.T) {
	for _, v := range refVectors {
		r, err := actor.ParseTarget([]string{v.in})
		if r != v.want || (err == nil) != (v.want != actor.Ref{}) || err != nil && !errors.Is(err, actor.ErrTarget) {
			t.Errorf("ParseTarget(%q) = %v, %v; want %v", v.in, r, err, v.want)
		}
	}
	for name, lines := range map[string][]string{
		"no line":                {},
		"two lines":              {"demo/a", "demo/b"},
		"the same twice":         {"demo/a", "demo/a"},
		"an empty line after it": {"demo/a", ""},
		"an empty line before":   {"", "demo/a"},
		"a list in one line":     {"demo/a,demo/a"},
	} {
		t.Run(name, func(t *testing.T) {
			if r, err := actor.ParseTarget(lines); !errors.Is(err, actor.ErrTarget) || r != (actor.Ref{}) {
				t.Errorf("ParseTarget = %v, %v; want ErrTarget", r, err)
			}
		})
	}
}

// TestTargetTwin joins the lines as RFC 9110 section 5.3 allows a recipient to: what is one reference then, and was one
// line before, is a target, and nothing else.
func TestTargetTwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { checkTarget(t, rapid.SliceOfN(nearRef, 0, 3).Draw(t, "lines")) })
}

func checkTarget(t interface{ Fatalf(string, ...any) }, lines []string) {
	r, err := actor.ParseTarget(lines)
	valid := len(lines) == 1 && refTwin.MatchString(strings.Join(lines, ", "))
	if (err == nil) != valid || valid && r.String() != lines[0] || !valid && r != (actor.Ref{}) {
		t.Fatalf("ParseTarget(%q) = %v, %v", lines, r, err)
	}
}

func FuzzParseTarget(f *testing.F) {
	for _, v := range refVectors {
		f.Add(v.in, "", 1)
	}
	f.Add("demo/a", "demo/a", 2)
	f.Fuzz(func(t *testing.T, a, b string, n int) { checkTarget(t, []string{a, b}[:max(0, min(n, 2))]) })
}

func TestHelperFields(t *testing.T) {
	for name, want := range map[string]bool{
		actor.TargetField: true, "x-ate-target-port": true, "x-ate-original-dst": true, "x-ate-original-host": true,
		"ate-endpoint-cached": true, "x-ate-assignment-stale": true, "ate-router-reason": true,
		"host": false, "traceparent": false, "x-ate-target": false, "": false,
	} {
		if got := actor.HelperField(name); got != want {
			t.Errorf("HelperField(%q) = %v, want %v", name, got, want)
		}
	}
}

func TestAllocations(t *testing.T) {
	lines := []string{"demo/a-long-enough-name"}
	if n := testing.AllocsPerRun(100, func() {
		if _, err := actor.ParseTarget(lines); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("reading a target allocates %v times", n)
	}
}
