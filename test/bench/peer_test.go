package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

func TestConfigurations(t *testing.T) {
	b := &bench{cache: t.TempDir(), basePort: 40000, cert: certificate{cert: "/c.pem", key: "/k.pem", pair: "/p.pem"}}
	ports := map[int]string{}
	for i, p := range peers {
		t.Run(p.name, func(t *testing.T) {
			s := b.siteOf(i, p.name)
			for _, port := range []int{s.Plain, s.TLS, s.Admin, s.TCP, s.UDP} {
				if ports[port] != "" || port == b.basePort {
					t.Errorf("port %d is used twice", port)
				}
				ports[port] = p.name
			}
			cmd, err := p.command("/bin/proxy", s)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(s.Dir, p.config)
			if !slices.ContainsFunc(cmd.Args, func(a string) bool { return strings.HasSuffix(a, p.config) }) {
				t.Errorf("the command %v does not name the configuration", cmd.Args)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{fmt.Sprint(s.Plain), fmt.Sprint(s.TLS), fmt.Sprint(s.Upstream)} {
				if !strings.Contains(string(text), want) {
					t.Errorf("the configuration does not name %s", want)
				}
			}
			if strings.Contains(string(text), "{{") || strings.Contains(string(text), "<no value>") {
				t.Errorf("the template was not filled:\n%s", text)
			}
		})
	}
}

func TestVersionIn(t *testing.T) {
	for _, c := range []struct{ text, binary, want string }{
		{"nginx version: nginx/1.22.1\n", "nginx", "1.22.1"},
		{"HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/\nStatus: x\n", "haproxy", "2.6.12-1+deb12u4"},
		{"\n/x/python3.11/envoy  version: 39f0/1.40.0/Clean/RELEASE/BoringSSL\n", "/x/python3.11/envoy", "1.40.0"},
		{"v2.11.9 h1:abc=\n", "caddy", "v2.11.9"},
		{"sluice unknown\n", "sluice", "unknown"},
		{"", "x", ""},
	} {
		if got := versionIn(c.text, c.binary); got != c.want {
			t.Errorf("%q: got %q, want %q", c.text, got, c.want)
		}
	}
}

func TestMissingHeaders(t *testing.T) {
	whole := "GET /echo HTTP/1.1\r\nHost: bench.example\r\nX-Forwarded-For: 127.0.0.1\r\nx-forwarded-proto: https\r\n\r\n"
	if got := missing(whole); len(got) != 0 {
		t.Errorf("missing from a whole head: %v", got)
	}
	if got := missing("GET /echo HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); len(got) != 3 {
		t.Errorf("missing from a bare head: %v", got)
	}
}

func TestProcessStopTakesDescendants(t *testing.T) {
	p, err := launch(exec.Command("sh", "-c", "trap '' TERM; sleep 300 & echo; wait; sleep 300"))
	if err != nil {
		t.Fatal(err)
	}
	var kin []procStat
	for len(kin) < 2 && p.ended() == nil { // until the shell has its child
		all, err := readAll()
		if err != nil {
			t.Fatal(err)
		}
		kin = family(all, p.pid())
	}
	p.grace = 1
	p.stop()
	if p.ended() == nil {
		t.Error("the process is still there")
	}
	for _, k := range kin {
		gatewaytest.Until(t, fmt.Sprintf("process %d has ended", k.PID), func() bool { return !alive(k) })
	}
}

// alive tells whether a process still runs; one that only waits to be reaped does not.
func alive(old procStat) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", old.PID))
	if err != nil {
		return false
	}
	now, err := parseStat(strings.TrimSpace(string(b)))
	return err == nil && now.Start == old.Start && !strings.Contains(string(b), ") Z ") && !strings.Contains(string(b), ") X ")
}
