package config_test

import (
	"testing"

	"go.uber.org/goleak"
)

// canary begins every secret of these tests: it may appear in no output.
const canary = "CANARY-"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
