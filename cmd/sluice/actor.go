package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/control"
)

func (c *cli) actorCommand() *cobra.Command {
	return c.planeCommand("actor", "Make, look at, resume and suspend actors", actorCreate,
		actors.does("get", "Show an actor, and change nothing", (*control.Client).GetActor),
		actors.lists(words{use: "list [ATESPACE]", short: "List actors", args: cobra.MaximumNArgs(1)}, func(ctx context.Context, c *control.Client, args []string) ([]actor.Actor, error) {
			return c.ListActors(ctx, strings.Join(args, ""))
		}),
		actors.does("resume", "Make an actor run, if it does not", func(c *control.Client, ctx context.Context, r actor.Ref) (actor.Actor, error) {
			a, _, err := c.ResumeActor(ctx, r)
			return a, err
		}),
		actors.does("suspend", "End an actor, and keep it where every worker can resume it", (*control.Client).SuspendActor),
		actors.does("pause", "End an actor, and keep it on its node", (*control.Client).PauseActor),
		actors.does("revert", "Drop what an actor has done since it was suspended last, or its crash", (*control.Client).RevertActor),
		actorDelete, (*plane).actorCut, (*plane).actorLogs)
}

var actors = tabled("ATESPACE/NAME", asRef("actor"), "ACTOR STATE WORKER ADDRESS TEMPLATE AGE REASON", actorRow)

func actorRow(a actor.Actor) []string {
	worker, addr := "", ""
	if a.Assignment != nil {
		worker = a.Assignment.Worker
		if len(a.Assignment.Addrs) > 0 {
			addr = a.Assignment.Addrs[0].String()
		}
	}
	return []string{a.Ref.String(), a.State.String(), worker, addr, a.Template.String(), age(a.Created), a.Crash}
}

func actorCreate(p *plane) *cobra.Command {
	var template string
	var labels []string
	cmd := actors.command(p, words{use: "create", short: "Make an actor, which is suspended at first"}, func(r actor.Ref, _ []string) (step[actor.Actor], error) {
		if template == "" {
			return nil, usagef("--template is required")
		}
		if !strings.Contains(template, "/") {
			template = r.Atespace + "/" + template
		}
		t, err := parseRef("--template", template)
		if err != nil {
			return nil, err
		}
		selector, err := parseLabels(labels)
		return func(ctx context.Context, c *control.Client) (actor.Actor, error) {
			return c.CreateActor(ctx, r, t, selector)
		}, err
	})
	cmd.Flags().StringVar(&template, "template", "", "template to make it from, NAME or ATESPACE/NAME (required)")
	cmd.Flags().StringArrayVar(&labels, "selector", nil, "KEY=VALUE, a label that its worker must have; repeatable")
	return cmd
}

// parseLabels reads labels of the form KEY=VALUE, each key once.
func parseLabels(texts []string) (map[string]string, error) {
	var out map[string]string
	for _, t := range texts {
		k, v, ok := strings.Cut(t, "=")
		if _, twice := out[k]; !ok || k == "" || twice {
			return nil, usagef("--selector %q is not KEY=VALUE, or its key is there twice", t)
		}
		if out == nil {
			out = map[string]string{}
		}
		out[k] = v
	}
	return out, nil
}

func actorDelete(p *plane) *cobra.Command {
	var anyState bool
	cmd := actors.command(p, words{use: "delete", short: "Forget an actor and its policy"}, func(r actor.Ref, _ []string) (step[actor.Actor], error) {
		return func(ctx context.Context, c *control.Client) (actor.Actor, error) {
			return c.DeleteActor(ctx, r, actor.Terms{AnyState: anyState})
		}, nil
	})
	cmd.Flags().BoolVar(&anyState, "any-state", false, "whatever state it is in, also when it runs")
	return cmd
}
