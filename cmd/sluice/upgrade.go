package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// upgradeBound is a little more than a new binary may take until it serves.
const upgradeBound = 35 * time.Second

func (c *cli) upgradeCommand() *cobra.Command {
	var pid int
	cmd := &cobra.Command{
		Use:   "upgrade",
		Short: "Have a running gateway hand over to the binary that is now installed",
		Long: `Tells a running gateway (SIGUSR2) to start the binary that lies at its path now and to hand it the listening
sockets. Connections that are open finish at the old process; if the new one does not come up, the old one goes on.

Which process: --pid, else the one in --pid-file, else $MAINPID as set by systemd. With --pid-file it waits for the
new process to serve.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("pid") {
				if pid <= 1 {
					return usagef("--pid %d is no process that can be meant", pid)
				}
				return c.upgrade(pid, false)
			}
			if c.pidFile != "" {
				pid, err := readPID(c.pidFile)
				if err != nil {
					return err
				}
				return c.upgrade(pid, true)
			}
			if text := c.env("MAINPID"); text != "" {
				pid, err := strconv.Atoi(text)
				if err != nil || pid <= 1 {
					return fmt.Errorf("$MAINPID is %q, which is no process id", text)
				}
				return c.upgrade(pid, false)
			}
			return usagef("which process? give --pid or --pid-file")
		},
	}
	cmd.Flags().IntVar(&pid, "pid", 0, "process id of the running gateway")
	return cmd
}

func (c *cli) upgrade(pid int, wait bool) error {
	if err := catches(pid, int(syscall.SIGUSR2)); err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGUSR2); err != nil {
		if errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("there is no process %d", pid)
		}
		return fmt.Errorf("signalling process %d: %w", pid, err)
	}
	if !wait {
		_, err := fmt.Fprintf(c.out, "asked process %d to hand over; its log tells how that went\n", pid)
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(upgradeBound); time.Now().Before(end); <-tick.C {
		next, err := readPID(c.pidFile)
		if errors.Is(err, os.ErrNotExist) { // it was told to stop instead
			return fmt.Errorf("process %d has stopped", pid)
		}
		if err == nil && next != pid {
			_, err := fmt.Fprintf(c.out, "process %d serves; process %d finishes what it has begun\n", next, pid)
			return err
		}
	}
	return fmt.Errorf("no new process after %s; process %d goes on, its log tells why", upgradeBound, pid)
}
