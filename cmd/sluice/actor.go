package main

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/control"
)

func (c *cli) actorCommand() *cobra.Command {
	return c.planeCommand("actor", "Make, look at, resume and suspend actors", (*plane).actorCreate, (*plane).actorGet, (*plane).actorList,
		actorOp("resume", "Make an actor run, if it does not", func(ctx context.Context, c *control.Client, r actor.Ref) (actor.Actor, error) {
			a, _, err := c.ResumeActor(ctx, r)
			return a, err
		}),
		actorOp("suspend", "End an actor, and keep it where every worker can resume it", func(ctx context.Context, c *control.Client, r actor.Ref) (actor.Actor, error) {
			return c.SuspendActor(ctx, r)
		}),
		actorOp("pause", "End an actor, and keep it on its node", func(ctx context.Context, c *control.Client, r actor.Ref) (actor.Actor, error) {
			return c.PauseActor(ctx, r)
		}),
		actorOp("revert", "Drop what an actor has done since it was suspended last, or its crash", func(ctx context.Context, c *control.Client, r actor.Ref) (actor.Actor, error) {
			return c.RevertActor(ctx, r)
		}),
		(*plane).actorDelete, (*plane).actorCut, (*plane).actorLogs)
}

const actorHead = "ACTOR STATE WORKER ADDRESS TEMPLATE AGE REASON"

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

// actorOp makes a command that does one thing to one actor and shows what it is then.
func actorOp(verb, short string, do func(context.Context, *control.Client, actor.Ref) (actor.Actor, error)) func(*plane) *cobra.Command {
	return func(p *plane) *cobra.Command {
		return &cobra.Command{
			Use: verb + " ATESPACE/NAME", Short: short, Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				ref, err := parseRef("actor", args[0])
				if err != nil {
					return err
				}
				return p.call(func(ctx context.Context, c *control.Client) error {
					a, err := do(ctx, c, ref)
					if err != nil {
						return err
					}
					return show(p, a, actorHead, actorRow)
				})
			},
		}
	}
}

func (p *plane) actorGet() *cobra.Command {
	return actorOp("get", "Show an actor, and change nothing", func(ctx context.Context, c *control.Client, r actor.Ref) (actor.Actor, error) {
		return c.GetActor(ctx, r)
	})(p)
}

func (p *plane) actorCreate() *cobra.Command {
	var template string
	var labels []string
	cmd := actorOp("create", "Make an actor, which is suspended at first", func(ctx context.Context, c *control.Client, r actor.Ref) (actor.Actor, error) {
		if template == "" {
			return actor.Actor{}, usagef("--template is required")
		}
		if !strings.Contains(template, "/") {
			template = r.Atespace + "/" + template
		}
		t, err := parseRef("--template", template)
		if err != nil {
			return actor.Actor{}, err
		}
		selector, err := parseLabels(labels)
		if err != nil {
			return actor.Actor{}, err
		}
		return c.CreateActor(ctx, r, t, selector)
	})(p)
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

func (p *plane) actorList() *cobra.Command {
	return &cobra.Command{
		Use: "list [ATESPACE]", Short: "List actors", Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return p.call(func(ctx context.Context, c *control.Client) error {
				all, err := c.ListActors(ctx, strings.Join(args, ""))
				if err != nil {
					return err
				}
				return showAll(p, all, actorHead, actorRow)
			})
		},
	}
}

func (p *plane) actorDelete() *cobra.Command {
	var anyState bool
	cmd := actorOp("delete", "Forget an actor and its policy", func(ctx context.Context, c *control.Client, r actor.Ref) (actor.Actor, error) {
		return c.DeleteActor(ctx, r, actor.Terms{AnyState: anyState})
	})(p)
	cmd.Flags().BoolVar(&anyState, "any-state", false, "whatever state it is in, also when it runs")
	return cmd
}
