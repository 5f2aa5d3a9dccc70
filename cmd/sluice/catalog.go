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
		atespaces.does("create", "Make an atespace", (*control.Client).CreateAtespace),
		atespaces.does("delete", "Forget an atespace that is empty", func(c *control.Client, ctx context.Context, name string) (actor.Named, error) {
			return c.DeleteAtespace(ctx, name, actor.Terms{})
		}),
		atespaces.lists(words{use: "list", short: "List atespaces", args: cobra.NoArgs}, func(ctx context.Context, c *control.Client, _ []string) ([]actor.Named, error) {
			return c.ListAtespaces(ctx)
		}))
}

var atespaces = tabled("NAME", asName, "ATESPACE AGE", func(n actor.Named) []string { return []string{n.Name, age(n.Created)} })

func (c *cli) templateCommand() *cobra.Command {
	return c.planeCommand("template", "Make and list what actors are made from",
		templates.reads(words{
			use: "create", short: "Make a template",
			long: `Makes a template of a file, or of the standard input. It is JSON with the names of the wire, as template get --json prints
it; metadata is not read. Everything that is wrong with it is reported, and a member that is not known is wrong.`,
			example: `  echo '{"containers":[{"name":"main","image":"local:echo"}]}' | sluice template create demo/echo -`,
		}, func(ref actor.Ref, text []byte) (step[actor.Template], error) {
			t, err := control.ParseTemplate(text, ref)
			return func(ctx context.Context, c *control.Client) (actor.Template, error) { return c.CreateTemplate(ctx, t) }, err
		}),
		templates.lists(words{use: "list ATESPACE", short: "List the templates of an atespace", args: cobra.ExactArgs(1)}, func(ctx context.Context, c *control.Client, args []string) ([]actor.Template, error) {
			return c.ListTemplates(ctx, args[0])
		}),
		templates.does("get", "Show a template", (*control.Client).GetTemplate),
		templates.does("delete", "Forget a template; its actors cannot be resumed any more", func(c *control.Client, ctx context.Context, r actor.Ref) (actor.Template, error) {
			return c.DeleteTemplate(ctx, r, actor.Terms{})
		}))
}

var templates = tabled("ATESPACE/NAME", asRef("template"), "TEMPLATE CONTAINERS IMAGE VOLUMES AGE", templateRow)

func templateRow(t actor.Template) []string {
	image := ""
	if len(t.Containers) > 0 {
		image = t.Containers[0].Image
	}
	return []string{t.Ref.String(), fmt.Sprint(len(t.Containers)), image, fmt.Sprint(len(t.Volumes)), age(t.Created)}
}
