package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/control"
)

func (c *cli) atespaceCommand() *cobra.Command {
	return c.planeCommand("atespace", "Make and list what actors belong to",
		atespaceOp("create", "Make an atespace", func(ctx context.Context, c *control.Client, name string) (actor.Named, error) {
			return c.CreateAtespace(ctx, name)
		}),
		atespaceOp("delete", "Forget an atespace that is empty", func(ctx context.Context, c *control.Client, name string) (actor.Named, error) {
			return c.DeleteAtespace(ctx, name, actor.Terms{})
		}),
		func(p *plane) *cobra.Command {
			return &cobra.Command{
				Use: "list", Short: "List atespaces", Args: cobra.NoArgs,
				RunE: func(*cobra.Command, []string) error {
					return p.call(func(ctx context.Context, c *control.Client) error {
						all, err := c.ListAtespaces(ctx)
						if err != nil {
							return err
						}
						return showAll(p, all, "ATESPACE AGE", atespaceRow)
					})
				},
			}
		})
}

func atespaceRow(n actor.Named) []string { return []string{n.Name, age(n.Created)} }

func atespaceOp(verb, short string, do func(context.Context, *control.Client, string) (actor.Named, error)) func(*plane) *cobra.Command {
	return func(p *plane) *cobra.Command {
		return &cobra.Command{
			Use: verb + " NAME", Short: short, Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				return p.call(func(ctx context.Context, c *control.Client) error {
					n, err := do(ctx, c, args[0])
					if err != nil {
						return err
					}
					return show(p, n, "ATESPACE AGE", atespaceRow)
				})
			},
		}
	}
}

func (c *cli) templateCommand() *cobra.Command {
	return c.planeCommand("template", "Make and list what actors are made from", (*plane).templateCreate, (*plane).templateList,
		templateOp("get", "Show a template", func(ctx context.Context, c *control.Client, r actor.Ref) (actor.Template, error) {
			return c.GetTemplate(ctx, r)
		}),
		templateOp("delete", "Forget a template; its actors cannot be resumed any more", func(ctx context.Context, c *control.Client, r actor.Ref) (actor.Template, error) {
			return c.DeleteTemplate(ctx, r, actor.Terms{})
		}))
}

const templateHead = "TEMPLATE CONTAINERS IMAGE VOLUMES AGE"

func templateRow(t actor.Template) []string {
	image := ""
	if len(t.Containers) > 0 {
		image = t.Containers[0].Image
	}
	return []string{t.Ref.String(), fmt.Sprint(len(t.Containers)), image, fmt.Sprint(len(t.Volumes)), age(t.Created)}
}

func templateOp(verb, short string, do func(context.Context, *control.Client, actor.Ref) (actor.Template, error)) func(*plane) *cobra.Command {
	return func(p *plane) *cobra.Command {
		return &cobra.Command{
			Use: verb + " ATESPACE/NAME", Short: short, Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				ref, err := parseRef("template", args[0])
				if err != nil {
					return err
				}
				return p.call(func(ctx context.Context, c *control.Client) error {
					t, err := do(ctx, c, ref)
					if err != nil {
						return err
					}
					return show(p, t, templateHead, templateRow)
				})
			},
		}
	}
}

func (p *plane) templateCreate() *cobra.Command {
	return &cobra.Command{
		Use:   "create ATESPACE/NAME FILE|-",
		Short: "Make a template",
		Long: `Makes a template of a file, or of the standard input. It is JSON with the names of the wire, as template get --json prints
it; metadata is not read. Everything that is wrong with it is reported, and a member that is not known is wrong.`,
		Example: `  echo '{"containers":[{"name":"main","image":"local:echo"}]}' | sluice template create demo/echo -`,
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			ref, err := parseRef("template", args[0])
			if err != nil {
				return err
			}
			text, err := p.readText(args[1])
			if err != nil {
				return err
			}
			t, err := control.ParseTemplate(text, ref)
			if err != nil {
				return faulty(args[1], err)
			}
			return p.call(func(ctx context.Context, c *control.Client) error {
				t, err := c.CreateTemplate(ctx, t)
				if err != nil {
					return err
				}
				return show(p, t, templateHead, templateRow)
			})
		},
	}
}

func (p *plane) templateList() *cobra.Command {
	return &cobra.Command{
		Use: "list ATESPACE", Short: "List the templates of an atespace", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return p.call(func(ctx context.Context, c *control.Client) error {
				all, err := c.ListTemplates(ctx, args[0])
				if err != nil {
					return err
				}
				return showAll(p, all, templateHead, templateRow)
			})
		},
	}
}
