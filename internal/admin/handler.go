package admin

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
)

// maxBody bounds what is read of a request's body; no route here wants one.
const maxBody = 1 << 20

// handler answers for one set of settings.
type handler struct {
	set     *settings
	views   *Views
	metrics http.Handler
	log     *slog.Logger
}

func newHandler(set *settings, d *Deps) *handler {
	return &handler{set: set, views: &d.Views, metrics: d.Metrics, log: d.Log}
}

// ServeHTTP makes the checks in their fixed order (prefix, address, token) and then finds the route.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer h.recover(w)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if h.set.probeOnly {
		h.probe(w, r)
		return
	}
	route, ok := h.below(r.URL.Path)
	switch {
	case !ok:
		refuse(w, http.StatusNotFound, "Not found")
	case !h.set.admits(r.RemoteAddr):
		h.log.Debug("management request refused", "reason", "address", "peer", r.RemoteAddr)
		refuse(w, http.StatusForbidden, "Forbidden")
	case !h.set.knows(r.Header.Values("Authorization")):
		h.log.Debug("management request refused", "reason", "bearer", "peer", r.RemoteAddr)
		w.Header().Set("WWW-Authenticate", "Bearer")
		refuse(w, http.StatusUnauthorized, "Unauthorized")
	default:
		h.route(w, r, route)
	}
}

// recover turns a panic of a view into an answer. Without it the peer would see a broken connection.
func (h *handler) recover(w http.ResponseWriter) {
	if v := recover(); v != nil {
		if v == http.ErrAbortHandler {
			panic(v)
		}
		h.log.Error("management request panicked", "panic", v)
		refuse(w, http.StatusInternalServerError, "Internal server error")
	}
}

// below returns the part of a path after the prefix, without slashes around it.
func (h *handler) below(path string) (route string, ok bool) {
	rest, ok := strings.CutPrefix(path, h.set.prefix)
	if !ok || rest != "" && rest[0] != '/' || rest == "" && h.set.prefix == "" {
		return "", false
	}
	return strings.TrimSuffix(strings.TrimPrefix(rest, "/"), "/"), true
}

// probe serves the probe socket: the two probes, with the prefix and without.
func (h *handler) probe(w http.ResponseWriter, r *http.Request) {
	route, ok := h.below(r.URL.Path)
	if !ok {
		route = strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/"), "/")
	}
	if route != "livez" && route != "readyz" {
		refuse(w, http.StatusNotFound, "Not found")
		return
	}
	h.route(w, r, route)
}

// route finds what a path shows. Every route but that of cut only shows.
func (h *handler) route(w http.ResponseWriter, r *http.Request, route string) {
	if h.cut(w, r, route) {
		return
	}
	show := h.find(route)
	switch {
	case show == nil:
		refuse(w, http.StatusNotFound, "Not found")
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		refuse(w, http.StatusMethodNotAllowed, "Method not allowed")
	default:
		show(w, r)
	}
}

func (h *handler) find(route string) http.HandlerFunc {
	v := h.views
	kind, name, named := strings.Cut(route, "/")
	switch {
	case named && kind == "routes" && v.Routes != nil:
		return func(w http.ResponseWriter, _ *http.Request) { h.one(w, name) }
	case named && kind == "services" && v.Services != nil:
		return func(w http.ResponseWriter, _ *http.Request) { h.service(w, name) }
	case named:
		return nil
	}
	switch kind {
	case "", "health":
		return shown(v.Health != nil, v.health)
	case "livez":
		return shown(true, func() liveView { return liveView{true} })
	case "readyz":
		return h.readiness
	case "version":
		return shown(true, func() versionView { return versionView{v.Product, v.Version, "v1"} })
	case "config":
		return shown(v.Config != nil, v.Config)
	case "routes":
		return shown(v.Routes != nil, v.routes)
	case "services":
		return shown(v.Services != nil, v.services)
	case "backends":
		return shown(v.Services != nil, v.backends)
	case "metrics":
		if h.metrics != nil {
			return h.metrics.ServeHTTP
		}
	}
	return nil
}

// shown is a route that shows a document; none when the document is not wired.
func shown[T any](wired bool, view func() T) http.HandlerFunc {
	if !wired {
		return nil
	}
	return func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, view()) }
}

func (h *handler) readiness(w http.ResponseWriter, _ *http.Request) {
	ready := h.views.ready()
	status := http.StatusOK
	if !ready.Ready {
		status = http.StatusServiceUnavailable
	}
	answer(w, status, ready)
}

// one shows a single route.
func (h *handler) one(w http.ResponseWriter, name string) {
	for _, route := range h.views.routes() {
		if route.Name == name {
			answer(w, http.StatusOK, route)
			return
		}
	}
	refuse(w, http.StatusNotFound, "Route not found")
}

// service shows a single service.
func (h *handler) service(w http.ResponseWriter, name string) {
	for _, s := range h.views.services() {
		if s.Name == name {
			answer(w, http.StatusOK, s)
			return
		}
	}
	refuse(w, http.StatusNotFound, "Service not found")
}

// refuse answers with a fixed text.
func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(`{"error":"` + text + `"}`))
}

// answer writes a document for people to read.
func answer(w http.ResponseWriter, status int, document any) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(document); err != nil {
		refuse(w, http.StatusInternalServerError, "Internal server error")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}
