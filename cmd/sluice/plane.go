package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/terminal"
)

// plane is what the commands have in common that call a control plane.
type plane struct {
	*cli
	app.ControlOptions
	timeout time.Duration
	json    bool
}

// group makes a command that only has others below it.
func group(use, short string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s what?", cmd.CommandPath())
			}
			return usagef("unknown command %q", args[0])
		},
		RunE: func(*cobra.Command, []string) error { return nil },
	}
}

// planeCommand makes a group of commands that call a control plane.
func (c *cli) planeCommand(use, short string, below ...func(*plane) *cobra.Command) *cobra.Command {
	p := &plane{cli: c}
	cmd := group(use, short)
	f := cmd.PersistentFlags()
	f.StringVar(&p.Address, "control", c.envOr("SLUICE_CONTROL", defaultControl), "address of the control plane, else $SLUICE_CONTROL")
	f.StringVar(&p.Credentials, "credentials", c.envOr("SLUICE_CREDENTIALS", app.ComponentDir(c.dataDir(), "admin")), "directory of our certificates, else $SLUICE_CREDENTIALS")
	f.StringVar(&p.ServerName, "server-name", app.AteapiName, "name in the certificate of the control plane")
	f.DurationVar(&p.timeout, "timeout", 2*time.Minute, "how long to wait for the answer")
	f.BoolVar(&p.json, "json", false, "print JSON, with the names of the wire")
	_ = cmd.MarkPersistentFlagDirname("credentials")
	for _, b := range below {
		cmd.AddCommand(b(p))
	}
	return cmd
}

func (c *cli) envOr(name, otherwise string) string {
	if v := c.env(name); v != "" {
		return v
	}
	return otherwise
}

// call does something with a client, within the time that was given, and until we are told to stop.
func (p *plane) call(f func(ctx context.Context, c *control.Client) error) error {
	if p.timeout <= 0 {
		return usagef("--timeout %s is not positive", p.timeout)
	}
	client, err := app.DialControl(p.ControlOptions)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w\nIs that the --credentials directory of a control plane that has been started (sluice ateapi)?", err)
	}
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	return p.explained(f(ctx, client))
}

// explained adds to a refusal what an operator can do with it.
func (p *plane) explained(err error) error {
	e := (*actor.Error)(nil)
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case actor.Unavailable:
		return fmt.Errorf("%w (%s, asking the control plane at %s)", err, e.Code, p.Address)
	case actor.DeadlineExceeded:
		return fmt.Errorf("no answer from the control plane at %s within %s (%s); what was asked for may happen all the same", p.Address, p.timeout, e.Code)
	}
	return fmt.Errorf("%w (%s)", err, e.Code)
}

// show prints one thing: as JSON, or as a table with one row.
func show[T any](p *plane, v T, head string, row func(T) []string) error {
	if !p.json {
		return table(p.out, head, []T{v}, row)
	}
	text, err := control.JSON(v)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.out, "%s\n", text)
	return err
}

// showAll prints a list: as a JSON array, or as a table.
func showAll[T any](p *plane, all []T, head string, row func(T) []string) error {
	if !p.json {
		return table(p.out, head, all, row)
	}
	texts := make([]string, len(all))
	for i, v := range all {
		text, err := control.JSON(v)
		if err != nil {
			return err
		}
		texts[i] = string(text)
	}
	_, err := fmt.Fprintf(p.out, "[%s]\n", strings.Join(texts, ",\n"))
	return err
}

// table prints rows below a head whose words are separated by blanks. An empty cell is a dash.
func table[T any](w io.Writer, head string, all []T, row func(T) []string) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, strings.Join(strings.Fields(head), "\t"))
	for _, v := range all {
		cells := row(v)
		for i, c := range cells {
			if cells[i] = printable(c); c == "" {
				cells[i] = "-"
			}
		}
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	return t.Flush()
}

// printable is what others have written as a cell, where it moves nothing, and not all of it if that is long.
func printable(s string) string {
	const long = 120
	if len(s) > long {
		s = strings.ToValidUTF8(s[:long], "") + "..."
	}
	return terminal.Line(s)
}

// age is how long ago something was, as one number.
func age(t time.Time) string {
	switch d := time.Since(t); {
	case t.IsZero():
		return ""
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(int(d.Seconds()), 0))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// parseRef reads an argument of the form ATESPACE/NAME.
func parseRef(what, s string) (actor.Ref, error) {
	r, err := actor.ParseRef(s)
	if err != nil {
		return r, usagef("%s %q: %w", what, s, err)
	}
	return r, nil
}

// readText reads a file, or with "-" the standard input, up to 1 MiB.
func (p *plane) readText(name string) ([]byte, error) {
	const most = 1 << 20
	from := p.in
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		from = f
	}
	text, err := io.ReadAll(io.LimitReader(from, most+1))
	if err == nil && len(text) > most {
		err = fmt.Errorf("%s has more than %d bytes", name, most)
	}
	return text, err
}
