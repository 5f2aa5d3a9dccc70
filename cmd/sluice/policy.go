package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/egress"
)

func (c *cli) policyCommand() *cobra.Command {
	return c.planeCommand("policy", "Say what an actor may reach",
		policies.reads(words{
			use: "set", short: "Replace what an actor may reach",
			long: `Replaces the policy of an actor by that of a file, or of the standard input. It is JSON with the names of the wire, as
policy get --json prints it; metadata may be left out. Everything that is wrong with it is reported before anything is
changed, and a member that is not known is wrong.`,
			example: `  echo '{"rules":[{"https":{"hostnames":["api.example.com"]}}]}' | sluice policy set demo/a1 -`,
		}, func(ref actor.Ref, text []byte) (step[egress.Kept], error) {
			policy, err := control.ParsePolicy(text, ref)
			return func(ctx context.Context, c *control.Client) (egress.Kept, error) {
				return setPolicy(ctx, c, ref, policy)
			}, err
		}),
		(*plane).policyExplain,
		policies.does("get", "Show what an actor may reach", (*control.Client).GetPolicy),
		policies.does("delete", "Let an actor reach nothing any more", func(c *control.Client, ctx context.Context, r actor.Ref) (egress.Kept, error) {
			return c.DeletePolicy(ctx, r, actor.Terms{})
		}))
}

// policies are named by their actors, and printed rule by rule.
var policies = noun[actor.Ref, egress.Kept]{arg: "ATESPACE/NAME", parse: asRef("actor"), print: showPolicy}

// showPolicy prints a policy: as JSON that set reads, or a row for each rule.
func showPolicy(p *plane, k egress.Kept) error {
	if p.json {
		return show(p, k, "", nil)
	}
	if len(k.Rules) == 0 {
		_, err := fmt.Fprintln(p.out, "no rules: nothing can be reached")
		return err
	}
	return table(p.out, "RULE KIND HOSTNAMES PORTS CREDENTIALS", k.Rules, ruleRow(new(int)))
}

// ruleRow numbers rules as messages about them do.
func ruleRow(next *int) func(egress.Rule) []string {
	return func(r egress.Rule) []string {
		row := []string{fmt.Sprint(*next), "", "", "", ""}
		*next++
		fill := func(kind egress.Kind, hostnames []string, ports *egress.Ports, e *egress.Effects) {
			row[1], row[2], row[3], row[4] = kind.String(), strings.Join(hostnames, ","), portsText(ports), effectsText(e)
		}
		switch {
		case r.HTTP != nil:
			fill(egress.HTTP, r.HTTP.Hostnames, r.HTTP.Ports, r.HTTP.Effects)
		case r.HTTPS != nil:
			fill(egress.HTTPS, r.HTTPS.Hostnames, r.HTTPS.Ports, r.HTTPS.Effects)
		case r.Passthrough != nil:
			fill(egress.Passthrough, r.Passthrough.Hostnames, r.Passthrough.Ports, nil)
		}
		return row
	}
}

func portsText(p *egress.Ports) string {
	if p == nil {
		return ""
	}
	if p.All {
		return "all"
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(p.Numbers), " ", ","), "[]")
}

func effectsText(e *egress.Effects) string {
	if e == nil {
		return ""
	}
	var names []string
	for _, h := range e.ReplaceHeaders {
		names = append(names, h.Header)
	}
	return strings.Join(names, ",")
}

// setPolicy makes a policy, or replaces the one that is there. One that somebody else changes meanwhile is Aborted.
func setPolicy(ctx context.Context, c *control.Client, ref actor.Ref, policy egress.Policy) (egress.Kept, error) {
	before, err := c.GetPolicy(ctx, ref)
	if e := (*actor.Error)(nil); errors.As(err, &e) && e.Code == actor.NotFound {
		return c.CreatePolicy(ctx, ref, policy)
	}
	if unreadable := actor.Faults(nil); err != nil && !errors.As(err, &unreadable) { // one that nobody can read may be replaced
		return before, err
	}
	return c.UpdatePolicy(ctx, ref, policy, actor.Terms{UID: before.UID, Version: before.Version})
}

// faulty tells everything that is wrong with a file, a line each.
func faulty(name string, err error) error {
	if name == "-" {
		name = "standard input"
	}
	faults := actor.Faults(nil)
	if !errors.As(err, &faults) {
		return fmt.Errorf("%s: %w", name, err)
	}
	lines := make([]string, len(faults))
	for i, f := range faults {
		lines[i] = "\n  " + f.Field + ": " + f.Reason
	}
	return fmt.Errorf("%s cannot be used:%s", name, strings.Join(lines, ""))
}
