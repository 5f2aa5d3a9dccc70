package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/config"
)

// The outcomes of a walk.
const (
	walkForwarded = "forwarded"
	walkRefused   = "refused"
)

// walk is the answer of `explain` as it is printed. Its JSON names, and the words in outcome, code and reason, are
// stable: programs rely on them.
type walk struct {
	Outcome    string         `json:"outcome"`
	Refusal    *walkRefusal   `json:"refusal"` // null when forwarded
	Entrypoint walkEntrypoint `json:"entrypoint"`
	Request    walkRequest    `json:"request"`
	Routers    []walkRouter   `json:"routers"` // in the order they are tried
	Router     *string        `json:"router"`  // the one that takes the request
	Handlers   []walkHandler  `json:"middlewares"`
	Service    *walkService   `json:"service"`
	Inside     bool           `json:"inside_tunnel,omitempty"` // a request of an actor, whose policy decides first
	Actor      *walkActor     `json:"actor,omitempty"`         // where the service leads to actors
}

// walkActor is the actor that a request is for.
type walkActor struct {
	Actor     string `json:"actor"`
	Port      uint16 `json:"port"`
	Caller    string `json:"caller"` // "" nobody is known
	DecidedBy string `json:"decided_by"`
	State     string `json:"state"` // "" as is worker: the control plane was not asked
	Worker    string `json:"worker"`
}

func newWalkActor(a *app.Answer) *walkActor {
	if a.Actor == nil {
		return nil
	}
	q := a.Actor.Asked
	return &walkActor{Actor: q.Ref.String(), Port: q.Port, Caller: q.Caller, DecidedBy: a.Actor.Decision.By}
}

// found adds what the control plane says.
func (w *walkActor) found(a actor.Actor) {
	w.State = a.State.String()
	if a.Assignment != nil {
		w.Worker = a.Assignment.Worker
	}
}

func (w *walkActor) rows() [][]string {
	rows := [][]string{{"actor", w.Actor}, {"port", fmt.Sprint(w.Port)}, {"caller", orDash(w.Caller)}, {"decided by", orDash(w.DecidedBy)}}
	if w.State != "" {
		rows = append(rows, []string{"state", w.State}, []string{"worker", orDash(w.Worker)})
	}
	return rows
}

type walkRefusal struct {
	Status  int    `json:"status"` // 0: the connection is closed
	Code    string `json:"code"`
	Message string `json:"message"`
}

type walkEntrypoint struct {
	Name     string `json:"name"`
	Address  string `json:"address"`
	Protocol string `json:"protocol"`
	TLS      bool   `json:"tls"`
}

type walkRequest struct {
	Method      string `json:"method"`
	Host        string `json:"host"`
	Path        string `json:"path"`
	NormalPath  string `json:"normal_path"` // what rules are compared with; "" when refused before
	ClientIP    string `json:"client_ip"`   // what rules and logs see
	PeerTrusted bool   `json:"peer_trusted"`
}

type walkRouter struct {
	Name     string `json:"name"`
	Rule     string `json:"rule"`
	Priority int    `json:"priority"`
	Matched  bool   `json:"matched"` // takes the request
	Reason   string `json:"reason"`
	Detail   string `json:"detail"`
}

type walkHandler struct {
	Name     string         `json:"name"`
	Type     string         `json:"type"`
	Settings map[string]any `json:"settings"`
}

type walkService struct {
	Name     string        `json:"name"`
	Strategy string        `json:"strategy"`
	Backends []walkBackend `json:"backends"`
	Health   *walkHealth   `json:"health_check"` // null: not probed
	Timeouts walkTimeouts  `json:"timeouts"`
	PassHost bool          `json:"pass_host"`
	LeadsTo  string        `json:"leads_to,omitempty"` // of CONNECT, instead of backends
}

type walkBackend struct {
	URL    string `json:"url"`
	Weight int    `json:"weight"`
}

type walkHealth struct {
	Path     string `json:"path"`
	Interval string `json:"interval"`
}

type walkTimeouts struct {
	Connect     string `json:"connect"`
	Request     string `json:"request"`
	StreamIdle  string `json:"stream_idle"`
	StreamTotal string `json:"stream_total"`
}

// masked is the part of the JSON view that a walk shows: configuration reaches people by the one way that masks
// secrets.
type masked struct {
	Entrypoints map[string]struct {
		Address, Protocol string
		TLS               *struct{}
	}
	Routers     map[string]struct{ Rule string }
	Middlewares map[string]map[string]any
	Services    map[string]struct {
		LoadBalancer struct {
			Strategy    string
			Servers     []walkBackend
			HealthCheck *walkHealth `json:"health_check"`
			Request     string      `json:"request_timeout"`
			StreamIdle  string      `json:"stream_idle_timeout"`
			StreamTotal string      `json:"stream_total_timeout"`
		} `json:"load_balancer"`
		PassHost  bool `json:"pass_host"`
		Transport struct {
			Connect string `json:"connect_timeout"`
		}
	}
}

func newWalk(cfg *config.Config, a *app.Answer) (*walk, error) {
	view, err := config.JSON(cfg)
	if err != nil {
		return nil, err
	}
	var m masked
	if err := json.Unmarshal(view, &m); err != nil {
		return nil, fmt.Errorf("reading the view of the configuration: %w", err)
	}
	ep := m.Entrypoints[a.Entrypoint]
	w := &walk{
		Outcome:    walkForwarded,
		Entrypoint: walkEntrypoint{Name: a.Entrypoint, Address: ep.Address, Protocol: ep.Protocol, TLS: ep.TLS != nil},
		Request: walkRequest{
			Method: a.Method, Host: a.Host, Path: a.Path, NormalPath: a.NormalPath, ClientIP: a.ClientIP.String(), PeerTrusted: a.Trusted,
		},
		Routers: []walkRouter{}, Handlers: []walkHandler{}, Inside: a.Inside,
	}
	for _, v := range a.Verdicts {
		w.Routers = append(w.Routers, walkRouter{
			Name: v.Name, Rule: m.Routers[v.Name].Rule, Priority: v.Priority, Matched: a.Router != nil && a.Router.Name == v.Name,
			Reason: v.Reason.String(), Detail: v.Detail,
		})
	}
	w.Actor = newWalkActor(a)
	if r := a.Refused; r != nil {
		w.Outcome, w.Refusal = walkRefused, &walkRefusal{Status: r.Status, Code: string(r.Code), Message: r.Public}
		return w, nil
	}
	if a.Router != nil {
		w.Router = &a.Router.Name
	}
	for _, mw := range a.Chain {
		settings := maps.Clone(m.Middlewares[mw.Name])
		delete(settings, "type")
		w.Handlers = append(w.Handlers, walkHandler{Name: mw.Name, Type: mw.Type, Settings: settings})
	}
	if a.Service == nil { // what an actor asks for
		w.Service = &walkService{Name: config.OriginService, Backends: []walkBackend{}, LeadsTo: "the destination that the policy of the actor allows"}
		return w, nil
	}
	s := m.Services[a.Service.Name]
	lb := s.LoadBalancer
	w.Service = &walkService{
		Name: a.Service.Name, Strategy: lb.Strategy, Backends: lb.Servers, Health: lb.HealthCheck, PassHost: s.PassHost,
		Timeouts: walkTimeouts{Connect: s.Transport.Connect, Request: lb.Request, StreamIdle: lb.StreamIdle, StreamTotal: lb.StreamTotal},
		LeadsTo:  leadsTo(a.Service.Connect),
	}
	return w, nil
}

// text is the walk for people.
func (w *walk) text() string {
	var b strings.Builder
	table := func(rows ...[]string) {
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
		for _, r := range rows {
			fmt.Fprintln(t, "  "+strings.Join(r, "\t"))
		}
		_ = t.Flush() // into memory
	}
	kind := w.Entrypoint.Protocol
	if w.Entrypoint.TLS {
		kind += ", tls"
	}
	client := w.Request.ClientIP
	if w.Request.PeerTrusted {
		client += " (told by a trusted proxy)"
	}
	from := [][]string{
		{"client ip", client}, {"entrypoint", fmt.Sprintf("%s at %s (%s)", w.Entrypoint.Name, w.Entrypoint.Address, kind)},
	}
	switch config.Protocol(w.Entrypoint.Protocol) {
	case config.TCP:
		fmt.Fprintln(&b, "Connection")
		table(append([][]string{{"server name", orDash(w.Request.Host)}}, from...)...)
	case config.UDP:
		fmt.Fprintln(&b, "Datagrams")
		table(from...)
	default:
		fmt.Fprintln(&b, "Request")
		table(append([][]string{
			{"method", w.Request.Method},
			{"host", orDash(w.Request.Host)},
			{"path", w.Request.Path},
			{"normal path", orDash(w.Request.NormalPath)},
		}, from...)...)
	}
	if len(w.Routers) > 0 {
		fmt.Fprintln(&b, "\nRouters, in the order they are tried")
		rows := [][]string{{"NAME", "PRIORITY", "REASON", "DETAIL"}}
		for _, r := range w.Routers {
			rows = append(rows, []string{r.Name, fmt.Sprint(r.Priority), r.Reason, r.Detail})
		}
		table(rows...)
	}
	if len(w.Handlers) > 0 {
		fmt.Fprintln(&b, "\nMiddlewares, in the order they run")
		var rows [][]string
		for _, h := range w.Handlers {
			rows = append(rows, []string{h.Name, h.Type, h.settings()})
		}
		table(rows...)
	}
	if w.Actor != nil {
		fmt.Fprintln(&b, "\nActor")
		table(w.Actor.rows()...)
	}
	if s := w.Service; s != nil && w.Actor == nil {
		fmt.Fprintf(&b, "\nService %s\n", s.Name)
		table(s.rows(config.Protocol(w.Entrypoint.Protocol))...)
		if s.LeadsTo == "" {
			fmt.Fprintln(&b, "\nBackends")
		}
		rows := [][]string{{"URL", "WEIGHT"}}
		for _, e := range s.Backends {
			rows = append(rows, []string{e.URL, fmt.Sprint(e.Weight)})
		}
		if s.LeadsTo == "" {
			table(rows...)
		}
	}
	if r := w.Refusal; r != nil && r.Status == 0 {
		end := "Closed"
		if w.Entrypoint.Protocol == string(config.UDP) {
			end = "Dropped"
		}
		fmt.Fprintf(&b, "\n%s: %s (%s)\n", end, r.Code, r.Message)
	} else if r != nil {
		fmt.Fprintf(&b, "\nRefused: %d %s (%s)\n", r.Status, r.Code, r.Message)
	} else {
		fmt.Fprintf(&b, "\nForwarded to service %s by %s\n", w.Service.Name, w.by())
	}
	if w.Inside {
		fmt.Fprintln(&b, "The policy of the actor decides before any router: see sluice policy explain")
	}
	return b.String()
}

// by says who has led it to its service.
func (w *walk) by() string {
	if w.Router == nil {
		return "no router"
	}
	return "router " + *w.Router
}

// leadsTo says where a service leads CONNECTs; "" to backends.
func leadsTo(c *config.Connect) string {
	switch {
	case c == nil:
		return ""
	case c.Entrypoint != "":
		return "entrypoint " + c.Entrypoint
	}
	return fmt.Sprintf("the destination asked for, on ports %v", c.Ports)
}

func (s *walkService) rows(protocol config.Protocol) [][]string {
	if s.LeadsTo != "" {
		return [][]string{{"leads to", s.LeadsTo}}
	}
	health := "none"
	switch h := s.Health; {
	case h != nil && h.Path == "" && protocol == config.UDP:
		health = "probe every " + h.Interval
	case h != nil && h.Path == "":
		health = "connect every " + h.Interval
	case h != nil:
		health = fmt.Sprintf("GET %s every %s", h.Path, h.Interval)
	}
	if protocol == config.UDP {
		return [][]string{{"strategy", s.Strategy}, {"health check", health}}
	}
	if protocol == config.TCP {
		return [][]string{
			{"strategy", s.Strategy},
			{"health check", health},
			{"timeouts", fmt.Sprintf("connect %s, to any backend %s", s.Timeouts.Connect, s.Timeouts.Request)},
		}
	}
	host := "the client's"
	if !s.PassHost {
		host = "the backend's"
	}
	return [][]string{
		{"strategy", s.Strategy},
		{"health check", health},
		{"host header", host},
		{"timeouts", fmt.Sprintf("connect %s, request %s, stream idle %s, stream total %s",
			s.Timeouts.Connect, s.Timeouts.Request, s.Timeouts.StreamIdle, s.Timeouts.StreamTotal)},
	}
}

// settings are `key=value` pairs in the order of the keys.
func (h *walkHandler) settings() string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(h.Settings)) {
		value, err := json.Marshal(h.Settings[key])
		if err != nil { // cannot be: it was JSON
			continue
		}
		parts = append(parts, key+"="+string(value))
	}
	return strings.Join(parts, " ")
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
