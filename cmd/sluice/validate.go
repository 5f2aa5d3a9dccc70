package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/config"
)

func (c *cli) validateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate [FILE...]",
		Short: "Check configurations and report every mistake at once",
		Long: `Reads each configuration as serving would, fragments, certificates and environment included, and reports
everything that is wrong with it. Without FILE it checks that of --config. Exit code 1 when any is at fault.`,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return []string{"acl"}, cobra.ShellCompDirectiveFilterFileExt
		},
		RunE: func(_ *cobra.Command, files []string) error {
			if len(files) == 0 {
				files = []string{c.config.path}
			}
			var failed error
			for i, path := range files {
				if err := c.validate(path, i > 0); err != nil {
					failed = errTold
				}
			}
			return failed
		},
	}
}

// validate checks one configuration and prints what there is to say, after an empty line unless it is the first.
func (c *cli) validate(path string, more bool) error {
	cfg, err := c.load(path, true)
	if err != nil {
		if !errors.Is(err, errTold) {
			fmt.Fprintf(c.err, "sluice: %v\n", err)
		}
		return err
	}
	text := config.ValidText(cfg, path)
	if more {
		text = "\n" + text
	}
	_, err = fmt.Fprint(c.out, text)
	return err
}
