package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func versionText() string {
	return fmt.Sprintf("sluice %s (%s, %s/%s)\n", release(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprint(c.out, versionText())
			return err
		},
	}
}
