package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/acl"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/terminal"
)

// The exit codes. They are documented and never change.
const (
	exitOK     = 0
	exitFailed = 1 // a configuration at fault, or something that did not work
	exitUsage  = 2 // the command line is at fault
)

// cli is one invocation: where it reads and writes, and the flags that every command has.
type cli struct {
	in       io.Reader
	out, err *terminal.Writer
	env      func(string) string
	colors   bool // on err

	config    pathFlag
	logLevel  string
	logFormat string
	pidFile   string

	began bool // the command line was understood
}

// usageError is a mistake on the command line that only the command itself can find.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// told is an error of which everything has been printed.
var errTold = errors.New("already reported")

// execute runs one command line and returns the exit code.
func (c *cli) execute(args []string) int {
	root := c.root()
	root.SetArgs(args)
	cmd, err := root.ExecuteC()
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errTold), errors.Is(err, syscall.EPIPE): // who read what was printed has left, which is no news
		return exitFailed
	case !c.began || errors.As(err, &usage):
		fmt.Fprintf(c.err, "sluice: %v\n", err)
		if cmd.HasParent() && !cmd.HasSubCommands() {
			fmt.Fprintf(c.err, "Usage: %s\n", cmd.UseLine())
		}
		fmt.Fprintf(c.err, "See `%s --help`.\n", cmd.CommandPath())
		return exitUsage
	}
	fmt.Fprintf(c.err, "sluice: %v\n", err)
	return exitFailed
}

func (c *cli) root() *cobra.Command {
	run := c.runCommand()
	root := &cobra.Command{
		Use:   "sluice",
		Short: "A gateway for AI traffic",
		Long: `Sluice is a gateway for AI traffic. Without a command it serves the configuration:

  sluice --config gateway.acl`,
		Example: `  sluice demo                                    see it work, without a configuration
  sluice validate -c gateway.acl                 every mistake at once
  sluice explain GET http://localhost/v1/models  which way a request would take
  sluice -c gateway.acl                          serve`,
		Version:                    release(),
		SuggestionsMinimumDistance: 2,
		SilenceErrors:              true,
		SilenceUsage:               true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			if err := notConfig(cmd, args); err != nil {
				return err
			}
			text := fmt.Sprintf("unknown command %q", args[0])
			if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
				text += ", did you mean " + strings.Join(s, " or ") + "?"
			}
			return errors.New(text)
		},
		PersistentPreRun: func(*cobra.Command, []string) { c.began = true },
		RunE:             run.RunE,
	}
	root.SetIn(c.in)
	root.SetOut(c.out)
	root.SetErr(c.err)
	root.SetVersionTemplate(versionText())
	flags := root.PersistentFlags()
	c.config.path = "gateway.acl"
	flags.VarP(&c.config, "config", "c", "main configuration file, its name ends in .acl")
	flags.StringVar(&c.logLevel, "log-level", "", "trace, debug, info, warn or error (default info)")
	flags.StringVar(&c.logFormat, "log-format", "auto", "text, json, or auto: text on a terminal, json elsewhere")
	flags.StringVar(&c.pidFile, "pid-file", "", "file that holds the process id while serving")
	_ = root.MarkPersistentFlagFilename("config", "acl")
	_ = root.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions(levelNames(), cobra.ShellCompDirectiveNoFileComp))
	_ = root.RegisterFlagCompletionFunc("log-format", cobra.FixedCompletions([]string{"auto", "text", "json"}, cobra.ShellCompDirectiveNoFileComp))
	root.Flags().AddFlagSet(run.Flags())
	root.Flags().BoolP("version", "V", false, "print the version")
	root.AddCommand(run, c.validateCommand(), c.configCommand(), c.fmtCommand(), c.explainCommand(), c.demoCommand(),
		c.upgradeCommand(), c.versionCommand(), c.ateapiCommand(), c.ateletCommand(), c.routerCommand(), c.actorCommand(), c.policyCommand(), c.workerCommand(),
		c.atespaceCommand(), c.templateCommand(), c.auditCommand(), c.devCommand())
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil { // by itself it shows that of sluice for any word
		help.RunE = c.help(root, help.Run)
	}
	root.InitDefaultCompletionCmd()
	if completion, _, err := root.Find([]string{"completion"}); err == nil { // by itself it exits 0 at any word
		completion.Args = cobra.NoArgs
		completion.RunE = func(*cobra.Command, []string) error { return usagef("which shell? bash, zsh, fish or powershell") }
	}
	return root
}

// load reads and judges a configuration, prints what is wrong with it, and fails if that is more than warnings.
func (c *cli) load(path string, files bool) (*config.Config, error) {
	found, err := app.Inspect(path, files)
	if err != nil {
		return nil, c.advised(err)
	}
	c.diagnose(found.Diagnostics, found.Sources)
	if found.Config == nil {
		return nil, errTold
	}
	return found.Config, nil
}

// diagnose prints findings to standard error, errors before warnings, and counts the errors.
func (c *cli) diagnose(ds acl.Diagnostics, sources map[string][]byte) {
	acl.Render(c.err.File, ds, sources, acl.RenderOptions{Color: c.colors})
	n := 0
	for _, d := range ds {
		if d.Severity == acl.Error && d.Code != acl.CodeTruncated {
			n++
		}
	}
	switch {
	case n == 1:
		fmt.Fprintln(c.err, "sluice: 1 error in the configuration")
	case n > 1:
		fmt.Fprintf(c.err, "sluice: %d errors in the configuration\n", n)
	}
}

// colored reports whether what is written to w may have colours.
func (c *cli) colored(w *terminal.Writer) bool {
	return terminal.Is(w.File) && c.env("NO_COLOR") == "" && c.env("TERM") != "dumb"
}
