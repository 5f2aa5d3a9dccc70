package app_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/sluice-proxy/sluice/internal/egress"
)

// I5: an actor that opens connections too fast is told so, and the line names the limit.
func TestI5_EgressDialRate(t *testing.T) {
	w := newWorld(t, worldHosts, "")
	p := w.run("a1")
	p.may(everythingAllowed)
	c, status := p.tunnel("93.184.216.34:80") // where nobody is: each request dials
	if status != 200 {
		t.Fatalf("CONNECT: %d", status)
	}
	defer func() { _ = c.Close() }()
	in := bufio.NewReader(c)
	seen := map[string]int{}
	for n := range 1000 {
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: web.example.org\r\n\r\n")
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		seen[fmt.Sprint(resp.StatusCode)]++
		if resp.StatusCode == 503 {
			r := w.audit(n + 2)[n+1]
			if r.Reason != egress.LimitDials || r.Verdict != "deny" || r.Status != 503 {
				t.Errorf("after %v: %+v", seen, r)
			}
			return
		}
	}
	t.Errorf("answered %v", seen)
}
