package route_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/route"
)

func TestExplainReasons(t *testing.T) {
	in := request("GET b.example/x?k=s3cret-query")
	in.ClientIP = netip.MustParseAddr("192.0.2.7")
	in.Fields = fields{{"x-a", "s3cret-field"}}
	for _, tc := range []struct {
		rule   string
		reason route.Reason
		at     string // the part of the rule that decided
		detail string
	}{
		{"Host(`a.example`) && Path(`/y`)", route.ReasonHost, "Host(`a.example`)", `host "b.example" is not a.example`},
		{"HostRegexp(`a.*`)", route.ReasonHost, "HostRegexp(`a.*`)", `host "b.example"`},
		{"Host(`b.example`) && Path(`/y`)", route.ReasonPath, "Path(`/y`)", `path "/x" is not /y`},
		{"PathPrefix(`/y`)", route.ReasonPath, "PathPrefix(`/y`)", "does not start with /y"},
		{"PathRegexp(`/`)", route.ReasonPath, "PathRegexp(`/`)", "as a whole"},
		{"Path(`/x`) && Method(`post`)", route.ReasonMethod, "Method(`post`)", `method "GET" is not POST`},
		{"Headers(`X-A`, `1`)", route.ReasonHeader, "Headers(`X-A`, `1`)", "header x-a"},
		{"Query(`k`, `1`)", route.ReasonQuery, "Query(`k`, `1`)", "wanted value"},
		{"Query(`z`)", route.ReasonQuery, "Query(`z`)", `no query parameter "z"`},
		{"ClientIP(`10.0.0.0/8`)", route.ReasonClientIP, "ClientIP(`10.0.0.0/8`)", "192.0.2.7 is not in 10.0.0.0/8"},
		{"Path(`/x`) && !(Host(`b.example`) && Path(`/x`))", route.ReasonNotOperand, "Host(`b.example`) && Path(`/x`)", "excludes"},
		{"Path(`/y`) || Method(`POST`)", route.ReasonPath, "Path(`/y`)", "none of 2 alternatives"},
		{"HostSNI(`*`)", route.ReasonTCPOnly, "HostSNI(`*`)", "connections"},
	} {
		table := route.Build([]route.Entry{router(t, "r", tc.rule, 0)}, "web")
		v := table.Explain(&in)[0]
		if at := tc.rule[v.Pos : v.Pos+v.Len]; v.Reason != tc.reason || at != tc.at || !strings.Contains(v.Detail, tc.detail) {
			t.Errorf("%s: %s at %s: %s", tc.rule, v.Reason, at, v.Detail)
		}
		if strings.Contains(v.Detail, "s3cret") {
			t.Errorf("%s: the detail repeats a value: %s", tc.rule, v.Detail)
		}
	}
}

func TestExplainOrder(t *testing.T) {
	entries := []route.Entry{
		router(t, "late", "Path(`/x`)", 1),
		router(t, "first", "PathPrefix(`/`)", 50),
		router(t, "same", "PathPrefix(`/`)", 50),
		router(t, "miss", "Host(`a`)", 90),
		router(t, "elsewhere", "PathPrefix(`/`)", 99, "admin", "tcp"),
		{Name: "empty"},
	}
	in := request("GET h/x")
	var got []string
	for _, v := range route.Build(entries, "web").Explain(&in) {
		if entries[v.Entry].Name != v.Name {
			t.Errorf("entry %d is called %s", v.Entry, v.Name)
		}
		got = append(got, v.Name+": "+v.Reason.String()+": "+v.Detail)
	}
	want := []string{
		"elsewhere: entrypoint_not_bound: bound to admin, tcp only",
		`miss: host_mismatch: host "h" is not a`,
		"first: matched: first match in the order of priority and name",
		`same: shadowed: matches too, but "first" comes first by name at the same priority 50`,
		`late: shadowed: matches too, but "first" has priority 50 over 1`,
		"empty: no_rule: has no rule",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	noHost := request("GET /x")
	if v := route.Build(entries, "web").Explain(&noHost)[1]; v.Detail != "the request has no host" {
		t.Errorf("without a host: %s", v.Detail)
	}
	long := request("GET " + strings.Repeat("h", 5000) + "/x")
	if v := route.Build(entries, "web").Explain(&long)[1]; len(v.Detail) > 300 {
		t.Errorf("a detail of %d bytes", len(v.Detail))
	}
}
