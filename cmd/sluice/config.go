package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/acl"
	"github.com/sluice-proxy/sluice/internal/config"
)

// viewJSON is the one view that is not text.
const viewJSON = "json"

func (c *cli) configCommand() *cobra.Command {
	views := make([]string, 0, len(config.Views)+1)
	for _, v := range config.Views {
		views = append(views, v.String())
	}
	views = append(views, viewJSON)
	return &cobra.Command{
		Use:   "config [" + strings.Join(views, "|") + "]",
		Short: "Show the effective configuration, secrets masked",
		Long: `Prints a view of a valid configuration: lines sorted by name, fields separated by tabs, or everything with
defaults filled in as JSON. The output is stable and made for scripts. Secrets are masked.`,
		ValidArgs: views,
		Args:      cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			view := string(config.ViewSummary)
			if len(args) > 0 {
				view = args[0]
			}
			return c.show(view, views)
		},
	}
}

func (c *cli) show(view string, views []string) error {
	known := false
	for _, v := range views {
		known = known || v == view
	}
	if !known {
		hint := "want one of " + strings.Join(views, ", ")
		if s := acl.Suggest(view, views); s != "" {
			hint = "did you mean " + s + "?"
		}
		return usagef("unknown view %q, %s", view, hint)
	}
	cfg, err := c.load(c.config.path, false)
	if err != nil {
		return err
	}
	if view == viewJSON {
		b, err := config.JSON(cfg)
		if err != nil {
			return err
		}
		_, err = c.out.Write(b)
		return err
	}
	text, _ := config.Text(cfg, config.View(view))
	_, err = fmt.Fprint(c.out, text)
	return err
}
