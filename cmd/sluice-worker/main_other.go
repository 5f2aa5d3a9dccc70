//go:build !linux

package main

import (
	"fmt"
	"os"
	"runtime"
)

func main() {
	fmt.Fprintf(os.Stderr, "sluice-worker: needs network namespaces, which %s does not have: run it on Linux\n", runtime.GOOS)
	os.Exit(1)
}
