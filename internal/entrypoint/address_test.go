package entrypoint_test

import (
	"net"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/entrypoint"
)

func TestParseAddress(t *testing.T) {
	for text, want := range map[string]string{ // key network literal, or error
		"127.0.0.1:80":          "127.0.0.1:80 tcp4 127.0.0.1:80",
		"0.0.0.0:80":            "0.0.0.0:80 tcp4 0.0.0.0:80",
		":80":                   ":80 tcp :80",
		"[::]:80":               "[::]:80 tcp6 [::]:80",
		"[::1]:443":             "[::1]:443 tcp6 [::1]:443",
		"[0:0::1]:443":          "[::1]:443 tcp6 [::1]:443",
		"[::ffff:127.0.0.1]:80": "127.0.0.1:80 tcp4 127.0.0.1:80",
		"127.0.0.1:0":           "127.0.0.1:0/e tcp4 127.0.0.1:0",
		"LocalHost:80":          "localhost:80 tcp :80", // before it is resolved
		"unix:/run/s.sock":      "unix:/run/s.sock unix /run/s.sock",
		"unix:":                 "error: unix: needs a path",
		"80":                    "error: is not host:port or unix:/path",
		"::1:80":                "error: is not host:port or unix:/path",
		"127.0.0.1:http":        `error: port "http" is not a number up to 65535`,
		"127.0.0.1:65536":       `error: port "65536" is not a number up to 65535`,
		"127.0.0.1:-1":          `error: port "-1" is not a number up to 65535`,
		"":                      "error: is not host:port or unix:/path",
	} {
		key, network, literal, err := entrypoint.ParseAddress(text)
		got := strings.Join([]string{key, network, literal}, " ")
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

// What is accepted is bound as it says: a literal parses to itself again.
func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{"127.0.0.1:80", ":1", "[::1%lo]:2", "a.b:3", "unix:/x", "[::ffff:1.2.3.4]:5", "unix:@a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		key, network, literal, err := entrypoint.ParseAddress(text)
		if err != nil {
			return
		}
		if network == "unix" {
			if "unix:"+literal != text || key != text {
				t.Fatalf("%q became %s", text, literal)
			}
			return
		}
		if _, _, err := net.SplitHostPort(literal); err != nil {
			t.Fatalf("%q became %q: %v", text, literal, err)
		}
		again, network2, literal2, err := entrypoint.ParseAddress(literal)
		if err != nil || network2 != network || literal2 != literal {
			t.Fatalf("%q became %q, which became %q (%s, %v)", text, literal, literal2, again, err)
		}
	})
}
