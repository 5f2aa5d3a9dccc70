// Command sluice is the gateway and everything an operator types. It owns the command line: flags, texts for people,
// exit codes, signals. It lives as long as the process; what serves traffic is package app. It must not know how a
// configuration is decided on, only how to show it.
package main

import (
	"os"
	"runtime/debug"

	"github.com/sluice-proxy/sluice/internal/terminal"
)

// version is set when the binary is built for a release.
var version string

func main() {
	c := &cli{in: os.Stdin, out: terminal.NewWriter(os.Stdout), err: terminal.NewWriter(os.Stderr), env: os.Getenv}
	c.colors = c.colored(c.err)
	os.Exit(c.execute(os.Args[1:]))
}

// release is the version, or as much as the toolchain knows about it.
func release() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(devel)"
	}
	return info.Main.Version
}
