package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/control"
)

func (c *cli) workerCommand() *cobra.Command {
	return c.planeCommand("worker", "Look at the workers that host actors, and drain them", (*plane).workerList,
		workerOp("drain", "Keep further actors from a worker; those it has stay", func(ctx context.Context, c *control.Client, name string) (actor.Worker, error) {
			return c.DrainWorker(ctx, name)
		}),
		workerOp("delete", "Forget a worker that will not come back; its actors are crashed", func(ctx context.Context, c *control.Client, name string) (actor.Worker, error) {
			return c.DeleteWorker(ctx, name, actor.Terms{})
		}))
}

const workerHead = "WORKER STATE ACTORS NODE ADDRESS EPOCH AGE"

func workerRow(w actor.Worker) []string {
	state, addr := "ACTIVE", ""
	if w.Draining {
		state = "DRAINING"
	}
	if len(w.Addrs) > 0 {
		addr = w.Addrs[0].String()
	}
	return []string{w.Name, state, fmt.Sprintf("%d/%d", w.Hosted, w.Actors), w.Node, addr, fmt.Sprint(w.Epoch), age(w.Created)}
}

func (p *plane) workerList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List workers", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return p.call(func(ctx context.Context, c *control.Client) error {
				all, err := c.ListWorkers(ctx)
				if err != nil {
					return err
				}
				return showAll(p, all, workerHead, workerRow)
			})
		},
	}
}

// workerOp makes a command that does one thing to one worker and shows what it is then.
func workerOp(verb, short string, do func(context.Context, *control.Client, string) (actor.Worker, error)) func(*plane) *cobra.Command {
	return func(p *plane) *cobra.Command {
		return &cobra.Command{
			Use: verb + " NAME", Short: short, Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				return p.call(func(ctx context.Context, c *control.Client) error {
					w, err := do(ctx, c, args[0])
					if err != nil {
						return err
					}
					return show(p, w, workerHead, workerRow)
				})
			},
		}
	}
}
