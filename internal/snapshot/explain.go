package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/route"
	"github.com/sluice-proxy/sluice/internal/service"
)

// Question is a request, or a connection, that need not be sent to know what would happen to it.
type Question struct {
	Entrypoint string // "" when the configuration has one only
	Method     string // "" is GET; on an entrypoint for connections TCP, for datagrams UDP, and nothing else
	URL        string // absolute, or a path with Host among the fields; of a connection tls://NAME that it asks for, or ""
	Client     netip.Addr
	Fields     []config.HeaderValue
	Caller     string // identity that the client proves, for services that lead to actors; "" none
}

// Answer is the walk that the request would take. It comes from the same functions that decide for real requests.
type Answer struct {
	Entrypoint string
	Method     string
	Host       string
	Path       string
	NormalPath string
	ClientIP   netip.Addr
	Trusted    bool // the peer is a trusted proxy
	// Refused is set when the request is answered before routing, or no router takes it and nothing else does.
	Refused  *exchange.Error
	Router   *config.Router
	Service  *config.Service
	Inside   bool // a request inside a tunnel of an actor: without a Service it goes to its origin
	Chain    []*config.Middleware
	Actor    *ActorAnswer    // where the service leads to actors
	Verdicts []route.Verdict // every router in the order it would be tried
}

// ActorAnswer is what is decided about a request to an actor. Nobody is asked for it.
type ActorAnswer struct {
	Asked    actor.Asked
	Decision actor.Decision
}

// toActor answers what a service that leads to actors decides about a request.
func (a *Answer) toActor(x *exchange.Exchange, caller string) {
	if a.Refused != nil || a.Service == nil || a.Service.Actor == nil {
		return
	}
	access, judge := actor.AccessOf(a.Service.Actor), (*actor.Access).Judge
	if a.Method == "CONNECT" {
		judge = (*actor.Access).JudgeTunnel
	}
	asked, decision, refused := judge(&access, x, caller)
	if refused != nil {
		a.Refused = refused
	}
	a.Actor = &ActorAnswer{Asked: asked, Decision: decision}
}

// Explain answers a question about a valid configuration. The error is about the question.
func Explain(cfg *config.Config, q Question) (*Answer, error) {
	ep, err := chooseEntrypoint(cfg, q.Entrypoint)
	if err != nil {
		return nil, err
	}
	switch {
	case ep.Protocol == config.TCP, ep.Shared && strings.EqualFold(q.Method, "TCP"):
		return explainConn(cfg, ep, q)
	case ep.Protocol == config.UDP:
		return explainSession(cfg, ep, q)
	case ep.Egress != nil:
		return explainInside(cfg, ep, q)
	case ep.Protocol == config.CONNECT || strings.EqualFold(q.Method, "CONNECT"):
		return explainConnect(cfg, ep, q)
	}
	x, err := question(q, ep.TLS != nil)
	if err != nil {
		return nil, err
	}
	newTrusted(ep.Forwarded.TrustedIPs).judge(x)
	a := &Answer{
		Entrypoint: ep.Name, Method: string(x.Request.Method), Host: string(x.Request.Host), Path: string(x.Request.Path),
		ClientIP: x.Record.ClientIP, Trusted: x.Trusted,
	}
	in, err := input(x, ep.AllowEncodedSlash)
	if err != nil {
		errors.As(err, &a.Refused)
		return a, nil
	}
	a.NormalPath = string(x.Request.Normal)
	if ep.Shared {
		e := entry{shared: sharedTable(RouteEntries(cfg), ep)}
		if e.passes(x.Record.ClientIP, x.Request.Host) {
			a.Refused = misdirected
			return a, nil
		}
	}
	a.walk(cfg, ep, &in, noRoute)
	a.toActor(x, q.Caller)
	return a, nil
}

// explainConn answers a question about a connection.
func explainConn(cfg *config.Config, ep *config.Entrypoint, q Question) (*Answer, error) {
	name, isURL := strings.CutPrefix(q.URL, "tls://")
	switch {
	case !strings.EqualFold(q.Method, "TCP"):
		return nil, fmt.Errorf("entrypoint %s takes connections: ask for the method TCP", ep.Name)
	case q.URL != "" && !isURL || strings.ContainsAny(name, "/?#:"):
		return nil, errors.New("of a connection nothing is known but the server name it asks for: write tls://NAME, or nothing")
	case len(q.Fields) > 0:
		return nil, errors.New("a connection has no header fields")
	}
	x := new(exchange.Exchange)
	x.Request.Host = []byte(name)
	x.Record.ClientIP = client(q)
	a := &Answer{Entrypoint: ep.Name, Method: "TCP", Host: name, ClientIP: x.Record.ClientIP}
	in := connInput(x)
	a.walk(cfg, ep, &in, noRouteConn)
	return a, nil
}

// Answers to a CONNECT, or to another method in its place.
var (
	notConnect       = exchange.Reject(405, exchange.CodeMethodNotAllowed, "CONNECT required")
	notThere         = exchange.Reject(403, exchange.CodeDestinationDenied, "Destination not allowed")
	connectElsewhere = exchange.Reject(501, exchange.CodeNotImplemented, "CONNECT is not supported here")
)

// explainConnect answers a question about a CONNECT, or about another method where only that is served.
func explainConnect(cfg *config.Config, ep *config.Entrypoint, q Question) (*Answer, error) {
	x := new(exchange.Exchange)
	x.Request.Method, x.Request.Host = []byte(strings.ToUpper(q.Method)), []byte(q.URL)
	x.Record.ClientIP = client(q)
	for _, f := range q.Fields {
		if !exchange.ValidName(f.Name) || !exchange.ValidValue(f.Value) {
			return nil, fmt.Errorf("header %q cannot be sent", f.Name)
		}
		x.Request.Fields.Add(f.Name, f.Value)
	}
	a := &Answer{Entrypoint: ep.Name, Method: string(x.Request.Method), Host: q.URL, ClientIP: x.Record.ClientIP}
	switch {
	case a.Method != "CONNECT":
		a.Refused = notConnect
		return a, nil
	case ep.Protocol != config.CONNECT:
		a.Refused = connectElsewhere
		return a, nil
	}
	to, err := exchange.ParseAuthority(x.Request.Host)
	if err != nil {
		return nil, fmt.Errorf("of CONNECT the target is %w, such as example.net:443", err)
	}
	in := connectInput(x)
	a.walk(cfg, ep, &in, noConnect)
	if s := a.Service; s != nil && s.Connect != nil && s.Connect.Entrypoint == "" &&
		service.NewDestinations(s.Name, s.Connect, nil, nil).Judge(to) != nil {
		a.Refused = notThere
	}
	x.Request.Target = x.Request.Host
	a.toActor(x, q.Caller)
	return a, nil
}

// explainSession answers a question about the datagrams of a client.
func explainSession(cfg *config.Config, ep *config.Entrypoint, q Question) (*Answer, error) {
	switch {
	case !strings.EqualFold(q.Method, "UDP"):
		return nil, fmt.Errorf("entrypoint %s takes datagrams: ask for the method UDP", ep.Name)
	case q.URL != "" || len(q.Fields) > 0:
		return nil, errors.New("of datagrams nothing is known but where they come from: write no URL and no header field")
	}
	x := new(exchange.Exchange)
	x.Record.ClientIP = client(q)
	a := &Answer{Entrypoint: ep.Name, Method: "UDP", ClientIP: x.Record.ClientIP}
	in := sessionInput(x)
	a.walk(cfg, ep, &in, noRouteConn)
	return a, nil
}

// walk finds the router and what comes behind it; none is the refusal.
func (a *Answer) walk(cfg *config.Config, ep *config.Entrypoint, in *route.Input, none *exchange.Error) {
	entries := RouteEntries(cfg)
	table := tableOf(cfg, entries, ep)
	if ep.Shared && in.TCP {
		table = sharedTable(entries, ep)
	}
	if table == nil {
		return
	}
	a.Verdicts = table.Explain(in)
	i := table.Match(in)
	if i < 0 {
		a.Refused = none
		return
	}
	a.Router = cfg.Routers[entries[i].Name]
	a.Service = cfg.Services[a.Router.Service]
	for _, name := range a.Router.Middlewares {
		a.Chain = append(a.Chain, cfg.Middlewares[name])
	}
}

// client is the address that a question is about.
func client(q Question) netip.Addr {
	if !q.Client.IsValid() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return q.Client.Unmap()
}

func chooseEntrypoint(cfg *config.Config, name string) (*config.Entrypoint, error) {
	names := slices.Sorted(maps.Keys(cfg.Entrypoints))
	if name != "" {
		if ep := cfg.Entrypoints[name]; ep != nil {
			return ep, nil
		}
		return nil, fmt.Errorf("no entrypoint %q; there are %s", name, strings.Join(names, ", "))
	}
	if len(names) != 1 {
		return nil, fmt.Errorf("name the entrypoint; there are %s", strings.Join(names, ", "))
	}
	return cfg.Entrypoints[names[0]], nil
}

// question makes the exchange that an engine would have made of the request.
func question(q Question, tls bool) (*exchange.Exchange, error) {
	u, err := url.Parse(q.URL)
	if err != nil {
		return nil, fmt.Errorf("URL: %w", err)
	}
	x := new(exchange.Exchange)
	r := &x.Request
	r.Method = []byte(strings.ToUpper(q.Method))
	if q.Method == "" {
		r.Method = []byte("GET")
	}
	target := q.URL
	if i := strings.Index(target, "://"); i >= 0 { // as it is written, since parsing decodes
		target = target[i+3:]
		if i := strings.IndexAny(target, "/?#"); i >= 0 {
			target = target[i:]
		} else {
			target = ""
		}
	} else if target != "" && target != "*" && target[0] != '/' && target[0] != '?' {
		return nil, fmt.Errorf("URL %q has no scheme: http://%s, or a path from its / on", q.URL, q.URL)
	}
	target, _, _ = strings.Cut(target, "#")
	if target == "" || target[0] == '?' {
		target = "/" + target
	}
	r.Host, r.Target, r.TLS = []byte(u.Host), []byte(target), tls
	r.Path = r.Target
	if i := bytes.IndexByte(r.Target, '?'); i >= 0 {
		r.Path, r.Query = r.Target[:i], r.Target[i+1:]
	}
	for _, f := range q.Fields {
		if !exchange.ValidName(f.Name) || !exchange.ValidValue(f.Value) {
			return nil, fmt.Errorf("header %q cannot be sent", f.Name)
		}
		if strings.EqualFold(f.Name, "host") {
			r.Host = []byte(f.Value)
			continue
		}
		r.Fields.Add(f.Name, f.Value)
	}
	x.Record.ClientIP = client(q)
	return x, nil
}
