package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sluice-proxy/sluice/internal/actor"
)

// managementToken is the variable that holds the token of management, as by default.
const managementToken = "A3S_GATEWAY_ADMIN_TOKEN"

func (p *plane) actorCut() *cobra.Command {
	var at, tokenEnv string
	cmd := &cobra.Command{
		Use:   "cut ATESPACE/NAME",
		Short: "End everything that an actor has open at an egress gateway",
		Long: `Ends the tunnels of an actor at the egress gateway whose management is given, with everything that they carry. What the actor
opens afterwards is for its policy to say: take that away before (policy delete), and nothing is left.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			ref, err := parseRef("actor", args[0])
			if err != nil {
				return err
			}
			n, err := p.cut(ref, at, p.env(tokenEnv))
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(p.out, "%d tunnels of actor %s closed\n", n, ref)
			return err
		},
	}
	cmd.Flags().StringVar(&at, "management", "http://127.0.0.1:9090/api/gateway", "management of the gateway, with its prefix")
	cmd.Flags().StringVar(&tokenEnv, "token-env", managementToken, "environment variable with the token of management")
	return cmd
}

// cut asks management to end what an actor has open.
func (p *plane) cut(ref actor.Ref, at, token string) (closed int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), p.timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(at, "/")+"/actors/"+ref.String()+"/cut", nil)
	if err != nil {
		return 0, usagef("--management: %v", err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Closed int    `json:"closed"`
		Error  string `json:"error"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 4096)).Decode(&answer); err != nil {
		return 0, fmt.Errorf("management at %s answers %d, and not as a gateway does", at, resp.StatusCode)
	}
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("management at %s answers %d: %s (it cuts only where it requires a token, which $%s has to hold)", at, resp.StatusCode, answer.Error, managementToken)
	}
	return answer.Closed, nil
}
