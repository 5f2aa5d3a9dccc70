package gatewaytest_test

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// A port that was given out does not come again soon, though nobody listens there yet.
func TestFreePorts(t *testing.T) {
	seen := map[int]bool{}
	for range 30 {
		for _, port := range gatewaytest.FreePorts(t, 5) {
			if seen[port] {
				t.Fatalf("port %d was given out twice", port)
			}
			seen[port] = true
		}
	}
}
