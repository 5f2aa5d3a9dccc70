package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/egress"
)

// outcome is what `policy explain` prints. Its JSON names, and the words in verdict, leg and reason, are stable.
type outcome struct {
	Actor         string        `json:"actor"`
	UID           string        `json:"uid"`
	State         string        `json:"state"`
	Method        string        `json:"method"`
	URL           string        `json:"url"`
	PolicyVersion int64         `json:"policy_version"`
	Verdict       string        `json:"verdict"`
	Reason        egress.Reason `json:"reason"`
	Steps         []outcomeStep `json:"steps"`
	Route         *outcomeRoute `json:"route,omitempty"` // where the gateway leads it, if it is allowed and was asked for
}

// outcomeRoute is what the routers of a gateway do with an allowed request.
type outcomeRoute struct {
	Entrypoint  string       `json:"entrypoint"`
	Router      string       `json:"router"` // "" none takes it
	Middlewares []string     `json:"middlewares"`
	Service     string       `json:"service"`
	Refusal     *walkRefusal `json:"refusal,omitempty"`
}

type outcomeStep struct {
	Leg     egress.Leg    `json:"leg"`
	Verdict string        `json:"verdict"`
	Reason  egress.Reason `json:"reason"`
	Status  int           `json:"status,omitempty"` // 0: allowed, or the connection is closed
	Rule    *int          `json:"rule,omitempty"`
	Kind    string        `json:"kind,omitempty"`
	Pattern string        `json:"pattern,omitempty"`
	Detail  string        `json:"detail,omitempty"`
}

func (p *plane) policyExplain() *cobra.Command {
	var of, method, entrypoint string
	var running bool
	var fields []string
	cmd := &cobra.Command{
		Use:   "explain --actor ATESPACE/NAME URL",
		Short: "Say what would become of a request of an actor, and why",
		Long: `Takes a request that an actor might send through the decisions of an egress gateway, by the actor and the policy as they are now, in
the same code. Nothing is sent, and the actor is not resumed. What only the gateway can know is left out: where the name
leads, which may be an address that is refused, and its limits. With --entrypoint the routers of a gateway, by its configuration, are asked what
they do with a request that is allowed.`,
		Example: `  sluice policy explain --actor demo/a1 https://api.example.com/v1
  sluice -c gateway.acl policy explain --actor demo/a1 --entrypoint egress -X POST https://api.example.com/v1`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if of == "" {
				return usagef("--actor ATESPACE/NAME is required")
			}
			ref, err := parseRef("actor", of)
			if err != nil {
				return err
			}
			call, err := egress.ParseCall(method, args[0])
			if err != nil {
				return usagef("%v", err)
			}
			route, err := p.routeOf(entrypoint, method, args[0], fields)
			if err != nil {
				return err
			}
			for _, f := range fields {
				name, _, _ := strings.Cut(f, ":")
				call.Fields = append(call.Fields, strings.TrimSpace(name))
			}
			return p.call(func(ctx context.Context, c *control.Client) error {
				o, err := explainCall(ctx, c, ref, question{call, running})
				if err != nil {
					return err
				}
				if o.URL = args[0]; o.routed() {
					o.Route = route
				}
				return p.showOutcome(o)
			})
		},
	}
	cmd.Flags().StringVar(&of, "actor", "", "the actor, ATESPACE/NAME")
	cmd.Flags().StringVarP(&method, "method", "X", "GET", "method of the request")
	cmd.Flags().StringArrayVarP(&fields, "field", "H", nil, "field that the request has, as 'Name' or 'Name: value'; may be repeated")
	cmd.Flags().StringVar(&entrypoint, "entrypoint", "", "entrypoint with egress of the configuration (-c), whose routers are asked too")
	cmd.Flags().BoolVar(&running, "if-running", false, "as if the actor ran")
	return cmd
}

// routeOf asks the routers of an entrypoint about a request, as if it were allowed; nil when none is named.
func (p *plane) routeOf(entrypoint, method, url string, fields []string) (*outcomeRoute, error) {
	if entrypoint == "" {
		return nil, nil //nolint:nilnil // nothing was asked for
	}
	cfg, err := p.load(p.config.path, false)
	if err != nil {
		return nil, err
	}
	if ep := cfg.Entrypoints[entrypoint]; ep != nil && ep.Egress == nil {
		return nil, usagef("entrypoint %s has no egress", entrypoint)
	}
	q := app.Question{Entrypoint: entrypoint, Method: method, URL: url}
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ":")
		q.Fields = append(q.Fields, config.HeaderValue{Name: strings.TrimSpace(name), Value: strings.TrimSpace(value)})
	}
	a, err := app.Explain(cfg, q)
	if err != nil {
		return nil, usageError{err}
	}
	w, err := newWalk(cfg, a)
	if err != nil {
		return nil, err
	}
	r := &outcomeRoute{Entrypoint: entrypoint, Middlewares: []string{}, Refusal: w.Refusal}
	if w.Router != nil {
		r.Router = *w.Router
	}
	for _, h := range w.Handlers {
		r.Middlewares = append(r.Middlewares, h.Name)
	}
	if w.Service != nil {
		r.Service = w.Service.Name
	}
	return r, nil
}

// routed reports whether it is a request that routers get to see.
func (o *outcome) routed() bool {
	last := o.Steps[len(o.Steps)-1]
	return last.Verdict == "allow" && (last.Leg == egress.LegCleartext || last.Leg == egress.LegIntercepted)
}

// text is where the request goes, in a sentence.
func (r *outcomeRoute) text() string {
	if f := r.Refusal; f != nil {
		return fmt.Sprintf("refused by entrypoint %s: %d %s (%s)", r.Entrypoint, f.Status, f.Code, f.Message)
	}
	by, through := "no router", ""
	if r.Router != "" {
		by = "router " + r.Router
	}
	if len(r.Middlewares) > 0 {
		through = ", through " + strings.Join(r.Middlewares, ", ")
	}
	return fmt.Sprintf("forwarded to service %s by %s of entrypoint %s%s", r.Service, by, r.Entrypoint, through)
}

// question is what `policy explain` is asked.
type question struct {
	egress.Call
	running bool // as if the actor ran
}

// explainCall reads what the decisions need, and makes them. It is an error only when the control plane does not answer.
func explainCall(ctx context.Context, c *control.Client, ref actor.Ref, call question) (*outcome, error) {
	a, err := c.GetActor(ctx, ref)
	o := &outcome{Actor: ref.String(), UID: a.UID, State: a.State.String(), Method: call.Method}
	if call.running {
		a.State = actor.Running
	}
	admitted := egress.AdmitActor(ref, a, err)
	if err != nil && admitted.Status != 403 {
		return nil, err
	}
	k, err := c.GetPolicy(ctx, ref)
	s := egress.Stand(ref.Atespace, k, err)
	if s.Reason == egress.PolicyUnavailable && admitted.OK() {
		return nil, err
	}
	o.PolicyVersion = s.Version
	for _, step := range egress.Explain(admitted, s, call.Call) {
		v := step.Verdict
		out := outcomeStep{Leg: step.Leg, Verdict: "deny", Reason: v.Reason, Status: v.Status, Detail: v.Detail}
		if v.OK() {
			out.Verdict = "allow"
		}
		if v.Ruled {
			i := v.Match.Rule
			out.Rule, out.Kind, out.Pattern = &i, v.Match.Kind.String(), v.Match.Pattern
		}
		o.Steps = append(o.Steps, out)
		o.Verdict, o.Reason = out.Verdict, out.Reason
	}
	return o, nil
}

func (p *plane) showOutcome(o *outcome) error {
	if p.json {
		text, err := json.MarshalIndent(o, "", "  ")
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.out, "%s\n", text)
		return err
	}
	err := table(p.out, "LEG VERDICT REASON RULE PATTERN DETAIL", o.Steps, func(s outcomeStep) []string {
		rule := "-"
		if s.Rule != nil {
			rule = fmt.Sprintf("%d (%s)", *s.Rule, s.Kind)
		}
		return []string{string(s.Leg), s.Verdict, string(s.Reason), rule, orDash(s.Pattern), orDash(s.Detail)}
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.out, "\n%s %s for actor %s (%s): %s, %s\n", o.Method, o.URL, o.Actor, o.State, o.Verdict, o.Reason)
	if err == nil && o.Route != nil {
		_, err = fmt.Fprintln(p.out, o.Route.text())
	}
	return err
}
