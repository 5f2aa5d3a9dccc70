//go:build !linux

package entrypoint_test

const successorEnv = "SLUICE_TEST_SUCCESSOR"

func successor() int { return 0 }
