package config_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-proxy/sluice/internal/config"
)

// duration loads one and returns it.
func duration(t interface{ Fatalf(string, ...any) }, value string) (time.Duration, bool) {
	cfg, diags := config.Load([]config.Source{src("d.acl", `entrypoints "e" { address = ":1"; header_timeout = `+value+` }`)})
	if cfg == nil {
		for _, d := range diags {
			if d.Code != config.CodeRange && d.Code != config.CodeType {
				t.Fatalf("%s", d)
			}
		}
		return 0, false
	}
	return cfg.Entrypoints["e"].HeaderTimeout, true
}

func TestDurations(t *testing.T) {
	good := map[string]time.Duration{
		`"250ms"`: 250 * time.Millisecond, `"30"`: 30 * time.Second, `"30s"`: 30 * time.Second, `"2m"`: 2 * time.Minute,
		`"5 m"`: 5 * time.Minute, `"  7s  "`: 7 * time.Second, `"1h"`: time.Hour, `"1.5s"`: 1500 * time.Millisecond,
		`"1m30s"`: 90 * time.Second, `"1h 2m 3s 4ms"`: time.Hour + 2*time.Minute + 3*time.Second + 4*time.Millisecond,
		`"0.5"`: 500 * time.Millisecond, `30`: 30 * time.Second, `0.25`: 250 * time.Millisecond, `"8760h"`: 8760 * time.Hour,
		`"0s1ms"`: time.Millisecond, `"1."`: time.Second,
	}
	for text, want := range good {
		if got, ok := duration(t, text); !ok || got != want {
			t.Errorf("%s: %v, %v, want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{
		`""`, `" "`, `"0"`, `"0s"`, `"-5s"`, `"+5s"`, `"abc"`, `"s"`, `"5x"`, `"5d"`, `"5S"`, `"1m30"`, `"1 30s"`, `".5s"`, `"1.2.3s"`,
		`"1e3s"`, `"5s "5`, `"8761h"`, `"99999999999999999999h"`, `0`, `-1`, `1e300`, `31536001`, `true`, `["5s"]`, `"5µs"`, `"0.0000000001ms"`,
		`"` + strings.Repeat("1", 200) + `"`,
	} {
		if strings.HasSuffix(text, `"5`) {
			continue // a syntax error, judged elsewhere
		}
		if got, ok := duration(t, text); ok {
			t.Errorf("%s was accepted as %v", text, got)
		}
	}
}

// What a view prints is read back as the same duration.
func TestFormatDurationRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.SampledFrom([]time.Duration{time.Microsecond, time.Millisecond, time.Second, time.Minute, time.Hour}).Draw(t, "unit")
		d := time.Duration(rapid.Int64Range(1, 8000).Draw(t, "n")) * unit
		text := config.FormatDuration(d)
		if got, ok := duration(t, fmt.Sprintf("%q", text)); !ok || got != d {
			t.Fatalf("%v prints %s, which reads %v", d, text, got)
		}
	})
}

func TestParseAddress(t *testing.T) {
	good := map[string]string{
		"0.0.0.0:80": "0.0.0.0:80", "127.0.0.1:0": "127.0.0.1:0", ":8080": ":8080", "[::1]:443": "[::1]:443",
		"[2001:DB8::0:1]:1": "[2001:db8::1]:1", "[::ffff:10.0.0.1]:1": "10.0.0.1:1", "LocalHost:80": "localhost:80",
		"a_b.example.com.:1": "a_b.example.com.:1", "unix:/run/x.sock": "unix:/run/x.sock", "1.2.3.4:065535": "1.2.3.4:65535",
		"[fe80::1%eth0]:1": "[fe80::1%eth0]:1", "3com:1": "3com:1",
	}
	for in, want := range good {
		got, err := config.ParseAddress(in)
		if err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", in, got, err, want)
		}
		if again, err := config.ParseAddress(got); err != nil || again != got {
			t.Errorf("%q is not canonical: %q, %v", got, again, err)
		}
	}
	for _, in := range []string{
		"", ":", "80", "a", "a:", "a:b", "a:-1", "a:+1", "a:65536", "a:1:2", "::1:80", "[::1]", "[::1]80", "[1.2.3.4]:80", "[a]:80",
		"1.2.3.400:80", "1.2.3:80", "a..b:80", "-a:80", "a-:80", "a b:80", "*:80", "unix:", "unix:/", "unix:x", "tcp://a:80", "é:80",
		"unix:/" + strings.Repeat("x", 103), strings.Repeat("a", 64) + ":1", "a:0x50", "a: 80",
	} {
		if got, err := config.ParseAddress(in); err == nil {
			t.Errorf("%q was accepted as %q", in, got)
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{"1.2.3.4:80", "[::1]:80", "unix:/x", ":1", "a:1", "[::ffff:1.2.3.4%x]:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := config.ParseAddress(s)
		if err != nil {
			if len(s) > 5 && strings.Contains(err.Error(), s) {
				t.Errorf("the error repeats the address: %v", err)
			}
			return
		}
		if again, err := config.ParseAddress(got); err != nil || again != got {
			t.Errorf("%q is not canonical: %q, %v", got, again, err)
		}
	})
}

// The dialed address, the authority and the base path of a backend.
func TestBackends(t *testing.T) {
	cases := map[string]config.Server{
		"http://h:7000":       {Scheme: "http", Addr: "h:7000", Host: "h:7000"},
		"HTTP://H":            {Scheme: "http", Addr: "h:80", Host: "h"},
		"https://h":           {Scheme: "https", Addr: "h:443", Host: "h"},
		"https://h:443/":      {Scheme: "https", Addr: "h:443", Host: "h"},
		"https://h:80/a/b/":   {Scheme: "https", Addr: "h:80", Host: "h:80", Base: "/a/b"},
		"http://[::1]:8080/x": {Scheme: "http", Addr: "[::1]:8080", Host: "[::1]:8080", Base: "/x"},
		"unix:/run/a.sock":    {Scheme: "http", Addr: "unix:/run/a.sock", Host: "localhost"},
		"unix:///run/a.sock":  {Scheme: "http", Addr: "unix:/run/a.sock", Host: "localhost"},
	}
	for url, want := range cases {
		cfg, diags := config.Load([]config.Source{src("u.acl", fmt.Sprintf("services \"s\" { load_balancer { servers { url = %q } } }", url))})
		if cfg == nil {
			t.Errorf("%s: %s", url, report(diags))
			continue
		}
		got := cfg.Services["s"].LoadBalancer.Servers[0]
		got.Pos = want.Pos
		want.URL, want.Weight = url, 1
		if got != want {
			t.Errorf("%s: %+v, want %+v", url, got, want)
		}
	}
}
