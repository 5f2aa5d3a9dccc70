package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/egress"
	"github.com/sluice-proxy/sluice/internal/terminal"
)

func (c *cli) auditCommand() *cobra.Command {
	cmd := group("audit", "Read the audit log of an egress gateway")
	cmd.AddCommand(c.auditTail())
	return cmd
}

// auditTail prints decisions as people read them, or as they were written.
func (c *cli) auditTail() *cobra.Command {
	o := egress.TailOptions{Last: 20}
	var who string
	var verbatim bool
	cmd := &cobra.Command{
		Use: "tail [FILE]", Short: "Print the last decisions of an audit log", Args: cobra.MaximumNArgs(1),
		Long: `Prints the last decisions of the audit log in FILE; without one, in the file that the configuration names. A column that is not
known has a dash. The members of a line are told by docs/egress.md; --json prints lines as they are.`,
		Example: `  sluice audit tail -f --verdict deny
  sluice audit tail -n -1 --actor demo/a1 --json /var/log/sluice/audit.jsonl`,
		RunE: func(_ *cobra.Command, args []string) error {
			if who != "" {
				ref, err := parseRef("--actor", who)
				if err != nil {
					return err
				}
				o.Atespace, o.Actor = ref.Atespace, ref.Name
			}
			if o.Verdict != "" && o.Verdict != "allow" && o.Verdict != "deny" {
				return usagef("--verdict %q: allow or deny", o.Verdict)
			}
			path, err := c.auditFile(args)
			if err != nil {
				return err
			}
			return c.tailAudit(path, o, verbatim)
		},
	}
	flags := cmd.Flags()
	flags.IntVarP(&o.Last, "lines", "n", o.Last, "how many of the decisions that are there already; -1 for all")
	flags.BoolVarP(&o.Follow, "follow", "f", false, "go on with those that come, also in a file that replaces this one")
	flags.StringVar(&who, "actor", "", "ATESPACE/NAME of one actor")
	flags.StringVar(&o.Verdict, "verdict", "", "allow or deny")
	flags.BoolVar(&verbatim, "json", false, "the lines as they were written")
	_ = cmd.RegisterFlagCompletionFunc("verdict", cobra.FixedCompletions([]string{"allow", "deny"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// auditFile is the file that was named, or the one that the configuration names.
func (c *cli) auditFile(args []string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	cfg, err := c.load(c.config.path, false)
	if err != nil {
		return "", err
	}
	var files []string
	for _, e := range cfg.Entrypoints {
		if e.Egress != nil && e.Egress.AuditLog != "stdout" && e.Egress.AuditLog != "stderr" && !slices.Contains(files, e.Egress.AuditLog) {
			files = append(files, e.Egress.AuditLog)
		}
	}
	switch len(files) {
	case 1:
		return files[0], nil
	case 0:
		return "", fmt.Errorf("no entrypoint of %s writes an audit log to a file: name the FILE", c.config.path)
	}
	return "", fmt.Errorf("%s has several audit logs, name one: %s", c.config.path, strings.Join(files, ", "))
}

func (c *cli) tailAudit(path string, o egress.TailOptions, verbatim bool) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	show := auditTable(c.out.File, c.colored(c.out))
	if verbatim {
		show = func(l egress.AuditLine) error { _, err := fmt.Fprintf(c.out, "%s\n", l.Text); return err }
	}
	strange, err := egress.TailAudit(ctx, path, o, show)
	if strange > 0 {
		fmt.Fprintf(c.err, "sluice: %d lines of %s are no decisions\n", strange, path)
	}
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("there is no audit log %s", path)
	}
	return err
}

const auditRow = "%-23s %-24s %-11s %s %-20s %6s  %s\n"

// auditTable returns what prints lines one below the other, and a head before the first.
func auditTable(out io.Writer, colors bool) func(egress.AuditLine) error {
	headed := false
	return func(l egress.AuditLine) error {
		if !headed {
			headed = true
			if _, err := fmt.Fprintf(out, auditRow, "TIME", "ACTOR", "LEG", fmt.Sprintf("%-7s", "VERDICT"), "REASON", "STATUS", "WHAT"); err != nil {
				return err
			}
		}
		r := &l.Record
		who, status := "-", "-"
		if r.Actor != "" {
			who = r.Atespace + "/" + r.Actor
		}
		if r.Status != 0 {
			status = strconv.Itoa(r.Status)
		}
		_, err := fmt.Fprintf(out, auditRow, r.Time.UTC().Format("2006-01-02 15:04:05.000"), terminal.Line(who), terminal.Line(string(r.Leg)), verdictText(r.Verdict, colors),
			terminal.Line(string(r.Reason)), status, terminal.Line(auditWhat(r)))
		return err
	}
}

func verdictText(v string, colors bool) string {
	text := fmt.Sprintf("%-7s", terminal.Line(v))
	switch {
	case !colors:
		return text
	case v == "allow":
		return "\x1b[32m" + text + "\x1b[0m"
	}
	return "\x1b[31m" + text + "\x1b[0m"
}

// auditWhat is what the actor wanted, and how it ended if not as its verdict says.
func auditWhat(r *egress.Record) string {
	name := r.Authority
	if name == "" {
		name = r.SNI
	}
	parts := []string{r.Method, name + r.Path}
	if r.Dialed != "" && name != r.Dialed {
		parts = append(parts, "("+r.Dialed+")")
	}
	if r.Router != "" {
		parts = append(parts, "by", r.Router, "to", r.Service)
	}
	if r.Code != "" {
		parts = append(parts, r.Code)
	}
	if r.Detail != "" {
		parts = append(parts, r.Detail)
	}
	return orDash(strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), " "))
}
