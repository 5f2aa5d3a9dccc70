package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/config"
)

func (c *cli) explainCommand() *cobra.Command {
	var q app.Question
	var client, credentials string
	var headers []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "explain [flags] METHOD [URL]",
		Short: "Show which way a request, connection or datagram would take, without sending it",
		Long: `Walks a request through the configuration with the functions that decide for real ones: the entrypoint, the path
as rules see it, each router and why it takes the request or not, the middlewares, the service and its backends.
Nothing is sent and nothing is bound.`,
		Example: `  sluice explain POST http://localhost/v1/chat/completions
  sluice explain --client 10.1.2.3 -H 'X-Team: red' GET https://example.com/admin --json
  sluice explain --entrypoint db TCP
  sluice explain --entrypoint dns --client 10.1.2.3 UDP
  sluice explain --caller spiffe://cluster.local/ns/apps/sa/web -H 'ate-target-actor: demo/a' GET https://gateway/`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(_ *cobra.Command, args []string) error {
			if q.Method = args[0]; len(args) == 2 {
				q.URL = args[1]
			} else if !strings.EqualFold(q.Method, "TCP") && !strings.EqualFold(q.Method, "UDP") {
				return usagef("say the URL of the request")
			}
			if client != "" {
				ip, err := netip.ParseAddr(client)
				if err != nil {
					return usagef("--client %q is no IP address", client)
				}
				q.Client = ip
			}
			for _, h := range headers {
				name, value, ok := strings.Cut(h, ":")
				if !ok || strings.TrimSpace(name) == "" {
					return usagef("-H %q is not of the form 'Name: value'", h)
				}
				q.Fields = append(q.Fields, config.HeaderValue{Name: strings.TrimSpace(name), Value: strings.TrimSpace(value)})
			}
			return c.explain(q, credentials, asJSON)
		},
	}
	cmd.Flags().StringVar(&q.Entrypoint, "entrypoint", "", "entrypoint that the request comes in by; may be left out when there is one")
	cmd.Flags().StringVar(&client, "client", "", "IP address that it comes from (default 127.0.0.1)")
	cmd.Flags().StringArrayVarP(&headers, "header", "H", nil, "header field, as 'Name: value'; may be repeated")
	cmd.Flags().StringVar(&q.Caller, "caller", "", "SPIFFE ID of the client's certificate, for services that lead to actors")
	cmd.Flags().StringVar(&credentials, "credentials", "", "directory of our certificates: ask the control plane where the actor is; nothing is woken")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON with stable codes")
	_ = cmd.RegisterFlagCompletionFunc("entrypoint", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		found, err := app.Inspect(c.config.path, false)
		if err != nil || found.Config == nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return slices.Sorted(maps.Keys(found.Config.Entrypoints)), cobra.ShellCompDirectiveNoFileComp
	})
	return cmd
}

func (c *cli) explain(q app.Question, credentials string, asJSON bool) error {
	cfg, err := c.load(c.config.path, false)
	if err != nil {
		return err
	}
	a, err := app.Explain(cfg, q)
	if err != nil {
		return usageError{err}
	}
	w, err := newWalk(cfg, a)
	if err != nil {
		return err
	}
	if a.Actor != nil && a.Refused == nil && credentials != "" {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		found, err := app.LookAtActor(ctx, a, credentials)
		if err != nil {
			return fmt.Errorf("asking where the actor is: %w", err)
		}
		w.Actor.found(found)
	}
	if asJSON {
		enc := json.NewEncoder(c.out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(w)
	}
	_, err = fmt.Fprint(c.out, w.text())
	return err
}
