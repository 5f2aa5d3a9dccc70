package atelet_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// The test binary is also the program of actors.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "as-actor" {
		act()
	}
	goleak.VerifyTestMain(m)
}
