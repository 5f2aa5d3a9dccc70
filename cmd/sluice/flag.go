package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// pathFlag is a flag for one path: to give a second one is a mistake, since one of the two would be ignored.
type pathFlag struct {
	path  string
	given bool
}

func (f *pathFlag) String() string { return f.path }
func (f *pathFlag) Type() string   { return "string" }

func (f *pathFlag) Set(path string) error {
	if f.given {
		return errors.New("it is given twice, and there is one main file; others are fragments, see providers { file { directory = … } }")
	}
	f.path, f.given = path, true
	return nil
}

// notConfig refuses words where none belong. Who gives the name of a configuration is told how.
func notConfig(cmd *cobra.Command, args []string) error {
	if len(args) > 0 && filepath.Ext(args[0]) == ".acl" {
		return fmt.Errorf("a configuration is named by a flag: %s --config %s", cmd.CommandPath(), args[0])
	}
	if !cmd.HasParent() {
		return nil
	}
	return cobra.NoArgs(cmd, args)
}

// help shows the help of a command that exists.
func (c *cli) help(root *cobra.Command, show func(*cobra.Command, []string)) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, words []string) error {
		if _, rest, err := root.Find(words); err != nil || len(rest) > 0 {
			return usagef("there is no command %q", strings.Join(words, " "))
		}
		show(cmd, words)
		return nil
	}
}
