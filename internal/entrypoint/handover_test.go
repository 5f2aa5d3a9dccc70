package entrypoint_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/entrypoint"
)

func TestReadHanded(t *testing.T) {
	line := func(i int) string {
		return fmt.Sprintf("{\"entrypoint\":\"u\",\"client\":\"127.0.0.1:%d\",\"local\":\"::1\",\"Service\":\"s\",\"Backend\":\"udp://b:1\"}\n", i)
	}
	cases := []struct {
		name, text string
		n          int
		bad        bool
	}{
		{"nothing", "", 0, false},
		{"two", line(1) + line(2), 2, false},
		{"the same twice", line(1) + line(1), 1, false},
		{"cut off", line(1) + line(2)[:40], 1, true},
		{"no client", line(1) + "{\"entrypoint\":\"u\"}\n" + line(2), 1, true},
		{"no entrypoint", "{\"client\":\"127.0.0.1:1\"}\n", 0, true},
		{"too long", line(1) + `{"Backend":"` + strings.Repeat("x", 4<<10) + "\"}\n", 1, true},
		{"link-local", "{\"entrypoint\":\"u\",\"client\":\"[fe80::1%3]:1\"}\n", 1, false},
	}
	for _, tc := range cases {
		if n, err := entrypoint.ReadHanded(strings.NewReader(tc.text)); n != tc.n || (err != nil) != tc.bad {
			t.Errorf("%s: %d, %v", tc.name, n, err)
		}
	}
}

func FuzzReadHanded(f *testing.F) {
	f.Add("{\"entrypoint\":\"u\",\"client\":\"127.0.0.1:1\",\"local\":\"::1\",\"Service\":\"s\",\"Backend\":\"udp://b:1\"}\n")
	f.Add("{}\n")
	f.Fuzz(func(t *testing.T, text string) {
		if n, _ := entrypoint.ReadHanded(strings.NewReader(text)); n > strings.Count(text, "\n")+1 {
			t.Errorf("%d sessions", n)
		}
	})
}
