package peers_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// command runs a client to its end and returns what it wrote to standard output.
func command(t *testing.T, program string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, errors.String())
	}
	return string(out)
}

// TestCurl has curl speak every protocol it knows: uploads that wait for 100, of known and unknown length, and several
// requests on one connection.
func TestCurl(t *testing.T) {
	t.Parallel()
	curl := gatewaytest.Peer(t, "curl")
	s := serve(t, "http://"+startEcho(t))
	file := filepath.Join(t.TempDir(), "upload")
	content := strings.Repeat("0123456789abcdef", 20_000)
	write(t, file, []byte(content))

	for _, m := range []struct {
		name, flag, scheme, address, version string
	}{
		{"clear", "--http1.1", "http", s.clear, "1.1"},
		{"1.0", "--http1.0", "http", s.clear, "1.1"}, // the version of the answer is ours
		{"tls", "--http1.1", "https", s.tls, "1.1"},
		{"upgrade to h2c is ignored", "--http2", "http", s.clear, "1.1"},
		{"h2c", "--http2-prior-knowledge", "http", s.clear, "2"},
		{"h2", "--http2", "https", s.tls, "2"},
	} {
		for _, r := range []struct {
			name string
			args []string
			want echoed // of each answer
		}{
			{"get", nil, echoed{Method: "GET"}},
			// Without a 100 it would wait for longer than it may take in all.
			{"upload that waits for 100", []string{"-X", "POST", "--data-binary", "@" + file, "-H", "Expect: 100-continue", "--expect100-timeout", "60"}, echoed{Method: "POST", Body: content}},
			{"upload of unknown length", []string{"-T", "-"}, echoed{Method: "PUT", Body: content}},
			{"upload with a length", []string{"-T", file, "-H", "Expect:"}, echoed{Method: "PUT", Body: content}},
			{"empty upload", []string{"-X", "POST", "-d", ""}, echoed{Method: "POST"}},
		} {
			if m.name == "1.0" && (strings.Contains(r.name, "unknown") || strings.Contains(r.name, "100")) {
				continue // HTTP/1.0 has no way to say it
			}
			t.Run(m.name+" "+r.name, func(t *testing.T) {
				r.want.URI, r.want.Host = "/a?b=c", m.address
				url := m.scheme + "://" + m.address + "/a?b=c"
				args := append([]string{"-sS", "--max-time", "20", "--cacert", s.certFile, m.flag, "-w", "\n%{http_version} %{http_code}\n"}, r.args...)
				args = append(args, url)
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				cmd := exec.CommandContext(ctx, curl, args...)
				cmd.Stdin = strings.NewReader(content)
				var errors strings.Builder
				cmd.Stderr = &errors
				out, err := cmd.Output()
				if err != nil {
					t.Fatalf("%v: %s", err, errors.String())
				}
				body, rest, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
				if got, want := strings.TrimSpace(rest), m.version+" 200"; got != want {
					t.Errorf("answered with %q, want %q", got, want)
				}
				var saw echoed
				if err := json.Unmarshal([]byte(body), &saw); err != nil || saw != r.want {
					t.Errorf("%v: the backend saw %.200v, want %.200v", err, fmt.Sprint(saw), fmt.Sprint(r.want))
				}
			})
		}
		t.Run(m.name+" one connection", func(t *testing.T) {
			switch m.name {
			case "1.0":
				t.Skip("curl closes it by itself")
			case "h2c":
				t.Skip("curl 7.88 sends the preface again when it reuses the connection, before other servers, too")
			}
			url := m.scheme + "://" + m.address + "/[1-5]"
			out := command(t, curl, "-sS", "--max-time", "20", "--cacert", s.certFile, m.flag, "-o", "/dev/null", "-w", "%{num_connects}", url)
			if out != "10000" {
				t.Errorf("connections made for each request: %s", out)
			}
		})
		t.Run(m.name+" head", func(t *testing.T) {
			out := command(t, curl, "-sS", "--max-time", "20", "--cacert", s.certFile, m.flag, "-I", m.scheme+"://"+m.address+"/")
			if !strings.HasPrefix(out, "HTTP/"+m.version+" 200") {
				t.Errorf("answered with %q", out)
			}
		})
	}
}

// TestPython runs Python's client before the gateway and Node behind it.
func TestPython(t *testing.T) {
	t.Parallel()
	python := gatewaytest.Peer(t, "python3")
	s := serve(t, startNode(t).url)
	out := command(t, python, filepath.Join("testdata", "client.py"), s.clear)
	if n := strings.Count(out, "ok "); n != 17 {
		t.Errorf("%d checks were made:\n%s", n, out)
	}
	upgraded := 0
	eventually(t, patience, "the session is logged", func() bool {
		upgraded = 0
		for _, e := range s.entries(t) {
			if e.Outcome == "upgraded" && e.Status == 101 && e.BytesIn == 201_002 {
				upgraded++
			}
		}
		return upgraded > 0
	})
	if upgraded != 1 {
		t.Errorf("%d lines about one session", upgraded)
	}
	s.empty(t)
}

// TestNodeHTTP2 runs Node's HTTP/2 client, which stands on nghttp2, over TLS and in clear text.
func TestNodeHTTP2(t *testing.T) {
	t.Parallel()
	node := gatewaytest.Peer(t, "node")
	s := serve(t, "http://"+startEcho(t))
	for name, url := range map[string]string{"h2c": "http://" + s.clear, "h2 over tls": "https://" + s.tls} {
		t.Run(name, func(t *testing.T) {
			out := command(t, node, filepath.Join("testdata", "http2.mjs"), url, s.certFile)
			if n := strings.Count(out, "ok "); n != 9 {
				t.Errorf("%d checks were made:\n%s", n, out)
			}
		})
	}
}
