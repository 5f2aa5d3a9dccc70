package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// advised adds to an error of the start, or of reading a configuration, what can be done about it, where that is known.
func (c *cli) advised(err error) error {
	advice := ""
	switch {
	case errors.Is(err, fs.ErrNotExist) && c.unnamed():
		advice = "Say with --config where it is. `sluice demo` needs none"
	case errors.Is(err, syscall.EADDRINUSE):
		advice = "Who has it is shown by `ss -ltnp`, of a udp entrypoint by `ss -lunp`"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		advice = "No interface of this machine has that address: `ip address` shows those there are"
	case errors.Is(err, syscall.EACCES) && strings.Contains(err.Error(), ": bind: "):
		advice = "Ports below 1024 are for root and for who has CAP_NET_BIND_SERVICE; the unit in deploy/ gives it"
	}
	if advice == "" {
		return err
	}
	return fmt.Errorf("%w\n%s", err, advice)
}

// unnamed reports whether nobody has said which configuration, and there is none by the default name.
func (c *cli) unnamed() bool {
	_, err := os.Stat(c.config.path)
	return !c.config.given && errors.Is(err, fs.ErrNotExist)
}
