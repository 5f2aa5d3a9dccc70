package admin

import (
	"net/http"
	"strings"
)

// cutView is the answer to an order to cut an actor.
type cutView struct {
	Closed int `json:"closed"` // connections
}

// cut serves the one route that does something: a POST to actors/ATESPACE/NAME/cut. It is there only where a token is required, so
// that no page in a browser can reach it.
func (h *handler) cut(w http.ResponseWriter, r *http.Request, route string) bool {
	rest, ok := strings.CutPrefix(route, "actors/")
	ref, ok2 := strings.CutSuffix(rest, "/cut")
	if !ok || !ok2 || h.views.Cut == nil || h.set.token == nil {
		return false
	}
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", "POST")
		refuse(w, http.StatusMethodNotAllowed, "Method not allowed")
		return true
	}
	n, known := h.views.Cut(ref)
	if !known {
		refuse(w, http.StatusNotFound, "Not found")
		return true
	}
	answer(w, http.StatusOK, cutView{n})
	return true
}
