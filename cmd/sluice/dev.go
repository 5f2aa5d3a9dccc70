package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/dev"
	"github.com/sluice-proxy/sluice/internal/terminal"
)

func (c *cli) devCommand() *cobra.Command {
	cmd := group("dev", "Run the whole actor network on this machine, or take a tour of it")
	cmd.Long = `Runs an actor network in network namespaces of this machine: control plane, router, egress gateway, workers with their
agents, and origins that exist in there alone. It needs Linux and root, touches no interface, route or rule of the machine itself,
and removes everything at the end.`
	cmd.AddCommand(c.devUp(), c.devDemo(), c.devStatus(), c.devDown(), c.devClean(), c.devActor())
	return cmd
}

// devRun makes a command about one run, which is its argument if it has one.
func (c *cli) devRun(use, short, run string, do func(context.Context, dev.Options) error) (*cobra.Command, *dev.Options) {
	o := &dev.Options{Run: run, Workers: 2, Slots: 2, Out: c.out.File, Colors: c.colored(c.out)}
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			// A terminal, or a reader of ours, that goes away is no reason to leave everything behind.
			signal.Ignore(syscall.SIGPIPE)
			ctx, stop := devEnd()
			defer stop()
			if len(args) > 0 {
				o.Run = args[0]
			}
			err := do(ctx, *o)
			if errors.Is(err, dev.ErrNeeds) || errors.Is(err, dev.ErrOptions) {
				return usageError{err}
			}
			return err
		},
	}
	cmd.Flags().StringVar(&o.Dir, "dir", "", "directory of certificates, records, sockets and logs, removed at the end (default /run/sluice-RUN)")
	_ = cmd.MarkFlagDirname("dir")
	return cmd, o
}

// devEnd is a context that ends with the first signal to end. A second one does not wait, but for hang-ups: a terminal that is closed sends
// several, and none to whoever was started by nohup.
func devEnd() (context.Context, context.CancelFunc) {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	context.AfterFunc(ctx, func() {
		signal.Ignore(syscall.SIGHUP)
		stop()
	})
	return ctx, stop
}

// defaultDevRun is the run of dev up.
const defaultDevRun = "dev"

// devStarts adds the flags of commands that start processes.
func devStarts(cmd *cobra.Command, o *dev.Options) {
	cmd.Args = cobra.NoArgs
	cmd.Flags().StringVar(&o.Run, "run", o.Run, "identifier in the name of everything that is made, 1 to 12 lower-case letters and digits")
	cmd.Flags().StringVar(&o.Worker, "worker-binary", "", "the sluice-worker to start (default the one beside this program)")
	_ = cmd.MarkFlagFilename("worker-binary")
}

func (c *cli) devUp() *cobra.Command {
	cmd, o := c.devRun("up", "Start an actor network, and remove it at Ctrl-C", defaultDevRun, func(ctx context.Context, o dev.Options) error {
		return dev.Up(ctx, o)
	})
	cmd.Flags().IntVar(&o.Workers, "workers", o.Workers, "workers, each in a namespace of its own")
	cmd.Flags().IntVar(&o.Slots, "slots", o.Slots, "actors that a worker hosts at a time")
	devStarts(cmd, o)
	return cmd
}

func (c *cli) devDemo() *cobra.Command {
	cmd, o := c.devRun("demo", "Show what an actor network does, step by step, and assert it", "demo", func(ctx context.Context, o dev.Options) error {
		err := dev.Tour(ctx, o)
		if errors.Is(err, dev.ErrTour) {
			return errTold
		}
		return err
	})
	devStarts(cmd, o)
	return cmd
}

func (c *cli) devStatus() *cobra.Command {
	var asJSON bool
	cmd, _ := c.devRun("status [RUN]", "Show the processes, addresses and actors of a network", defaultDevRun, func(ctx context.Context, o dev.Options) error {
		st, err := dev.Look(ctx, o)
		if err != nil {
			return err
		}
		if asJSON {
			e := json.NewEncoder(c.out)
			e.SetIndent("", "  ")
			return e.Encode(st)
		}
		return c.showDev(st)
	})
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (c *cli) showDev(st dev.Status) error {
	fmt.Fprintf(c.out, "run %s, supervisor %d, directory %s\n\n", st.Run, st.Supervisor, st.Dir)
	err := table(c.out, "PROCESS PID NAMESPACE AGE STATE LOG", st.Parts, func(p dev.Part) []string {
		state := "runs"
		if p.Ended != "" {
			state = "ended: " + p.Ended
		}
		return []string{p.Name, fmt.Sprint(p.PID), p.Namespace, age(p.Since), state, p.Log}
	})
	fmt.Fprintln(c.out)
	err = errors.Join(err, table(c.out, "ADDRESS HERE FABRIC", st.Addresses, func(a dev.Address) []string {
		return []string{a.Name, a.Host, a.Fabric}
	}))
	fmt.Fprintln(c.out)
	if st.ActorsError != "" {
		_, werr := fmt.Fprintf(c.out, "actors are not known: %s\n", terminal.Line(st.ActorsError))
		return errors.Join(err, werr)
	}
	return errors.Join(err, table(c.out, "ACTOR STATE WORKER REASON", st.Actors, func(a dev.ActorLine) []string {
		return []string{a.Actor, a.State, a.Worker, a.Reason}
	}))
}

func (c *cli) devDown() *cobra.Command {
	cmd, _ := c.devRun("down [RUN]", "Drain a network, and remove everything of it", defaultDevRun, func(ctx context.Context, o dev.Options) error {
		if err := dev.Down(ctx, o); err != nil {
			return err
		}
		_, err := fmt.Fprintf(c.out, "nothing of run %s is left\n", o.Run)
		return err
	})
	return cmd
}

func (c *cli) devClean() *cobra.Command {
	cmd, _ := c.devRun("clean [RUN]", "Remove what a network has left whose supervisor was killed", defaultDevRun, func(ctx context.Context, o dev.Options) error {
		found, err := dev.Clean(ctx, o)
		for _, f := range found {
			fmt.Fprintf(c.out, "found %s\n", f)
		}
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.out, "nothing of run %s is left\n", o.Run)
		return err
	})
	return cmd
}

// devActor is what the actors of a development network execute.
func (c *cli) devActor() *cobra.Command {
	return &cobra.Command{
		Use: "actor", Short: "Be an actor of a development network", Hidden: true, Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			s := &http.Server{Addr: ":80", Handler: dev.NewEcho().Handler(), ReadHeaderTimeout: 10 * time.Second}
			return s.ListenAndServe()
		},
	}
}
