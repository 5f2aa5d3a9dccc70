package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/atelet"
)

// actorLogs prints what an actor has written on this machine.
func (p *plane) actorLogs() *cobra.Command {
	dir := defaultActorLogs
	cmd := &cobra.Command{
		Use: "logs ATESPACE/NAME", Short: "Print what an actor has written, on the machine of its worker", Args: cobra.ExactArgs(1),
		Long: `Prints what an actor has written to its standard output and error, as the agent of its worker (sluice atelet) keeps it on this machine.
The control plane is not asked. A terminal is shown control characters as escapes, such as \u001b; a file or a pipe gets the bytes as they are.`,
		RunE: func(_ *cobra.Command, args []string) error {
			ref, err := parseRef("actor", args[0])
			if err != nil {
				return err
			}
			f, err := os.Open(atelet.OutputFile(dir, ref))
			if errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("actor %s has written nothing on this machine: there is no %s", ref, atelet.OutputFile(dir, ref))
			}
			if err != nil {
				return err
			}
			defer func() { _ = f.Close() }()
			_, err = io.Copy(p.out, f)
			return errors.Join(err, p.out.Flush())
		},
	}
	cmd.Flags().StringVar(&dir, "log-dir", dir, "the --log-dir of the worker's agent")
	_ = cmd.MarkFlagDirname("log-dir")
	return cmd
}
