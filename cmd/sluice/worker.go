package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/control"
)

func (c *cli) workerCommand() *cobra.Command {
	return c.planeCommand("worker", "Look at the workers that host actors, and drain them",
		workers.lists(words{use: "list", short: "List workers", args: cobra.NoArgs}, func(ctx context.Context, c *control.Client, _ []string) ([]actor.Worker, error) {
			return c.ListWorkers(ctx)
		}),
		workers.does("drain", "Keep further actors from a worker; those it has stay", (*control.Client).DrainWorker),
		workers.does("delete", "Forget a worker that will not come back; its actors are crashed", func(c *control.Client, ctx context.Context, name string) (actor.Worker, error) {
			return c.DeleteWorker(ctx, name, actor.Terms{})
		}))
}

var workers = tabled("NAME", asName, "WORKER STATE ACTORS NODE ADDRESS EPOCH AGE", workerRow)

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
