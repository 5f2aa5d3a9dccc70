package peers_test

import (
	"context"
	"encoding/xml"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// h2specMisses are the cases of h2spec that fail in clear text, with the reason. Package and description as its report
// has them. Over TLS none does.
var h2specMisses = map[string]string{
	"http2/3.5: Sends invalid connection preface": "RFC 9113 section 3.4: such a peer does not use HTTP/2. The port " +
		"also speaks HTTP/1.1, in which it is told 400 before the connection is closed; h2spec takes that for a frame.",
}

// h2specCases is how many there are in strict mode.
const h2specCases = 146

// TestH2Spec runs the conformance tester in strict mode. Every case must pass or stand in the table above, and one that
// stands there must fail.
func TestH2Spec(t *testing.T) {
	t.Parallel()
	h2spec := gatewaytest.Peer(t, gatewaytest.PeerH2Spec)
	back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, 8<<10)) // some cases need a body to wait for
	}))
	defer back.Close()
	s := serve(t, back.URL)
	for _, m := range []struct {
		name   string
		args   []string
		misses map[string]string
	}{
		{"h2c", addressFlags(t, s.clear), h2specMisses},
		{"h2 over tls", append(addressFlags(t, s.tls), "--tls", "--insecure"), nil},
	} {
		t.Run(m.name, func(t *testing.T) {
			report := filepath.Join(t.TempDir(), "report.xml")
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			out, err := exec.CommandContext(ctx, h2spec, append(m.args, "--strict", "--timeout", "2", "--junit-report", report)...).CombinedOutput()
			cases, failed := readReport(t, report)
			if cases != h2specCases {
				t.Fatalf("%d cases ran: %v\n%s", cases, err, out)
			}
			for c := range failed {
				if m.misses[c] == "" {
					t.Errorf("failed: %s", c)
				}
			}
			for c, why := range m.misses {
				if !failed[c] {
					t.Errorf("passed, though it stands in the table: %s (%s)", c, why)
				}
			}
			if t.Failed() {
				t.Logf("%s", out)
			}
		})
	}
}

func addressFlags(t *testing.T, address string) []string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return []string{"--host=" + host, "--port=" + port}
}

// readReport returns how many cases ran, and which of them failed.
func readReport(t *testing.T, path string) (cases int, failed map[string]bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Suites []struct {
			Cases []struct {
				Package string    `xml:"package,attr"`
				Name    string    `xml:"classname,attr"`
				Failure *struct{} `xml:"failure"`
				Error   *struct{} `xml:"error"`
				Skipped *struct{} `xml:"skipped"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(b, &report); err != nil {
		t.Fatal(err)
	}
	failed = map[string]bool{}
	for _, s := range report.Suites {
		for _, c := range s.Cases {
			cases++
			if c.Failure != nil || c.Error != nil || c.Skipped != nil {
				failed[c.Package+": "+c.Name] = true
			}
		}
	}
	return cases, failed
}
