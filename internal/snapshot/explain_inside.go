package snapshot

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// explainInside answers a question about a request of an actor, as if its policy allowed it: that is asked before any router, and no
// configuration knows it.
func explainInside(cfg *config.Config, ep *config.Entrypoint, q Question) (*Answer, error) {
	if strings.EqualFold(q.Method, "CONNECT") {
		return nil, fmt.Errorf("which tunnels entrypoint %s admits is for the policies of actors to say: ask about a request inside, or `sluice policy explain`", ep.Name)
	}
	x, err := question(q, strings.HasPrefix(strings.ToLower(q.URL), "https://"))
	if err != nil {
		return nil, err
	}
	if len(x.Request.Host) == 0 {
		return nil, errors.New("a request of an actor has a host: write an absolute URL")
	}
	a := &Answer{
		Entrypoint: ep.Name, Method: string(x.Request.Method), Host: string(x.Request.Host), Path: string(x.Request.Path),
		ClientIP: x.Record.ClientIP, Inside: true,
	}
	in, err := insideInput(x, a.Host)
	a.NormalPath = string(x.Request.Normal)
	a.walk(cfg, ep, &in, nil)
	if err == nil && a.Service != nil {
		err = noEncodedSlash(x)
	}
	if err != nil && len(a.Verdicts) > 0 {
		a.Router, a.Service, a.Chain = nil, nil, nil
		a.Refused = (*exchange.Error)(nil)
		errors.As(err, &a.Refused)
	}
	return a, nil
}
