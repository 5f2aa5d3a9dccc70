//go:build !race

package http2_test

const raceEnabled = false
