//go:build go1.27 && !http2legacy

package http2

import "net/http"

// limitFields bounds the number of fields that the frame loop accepts: twice ours, so that ours decides.
func limitFields(h *http.Server, n int) { h.MaxHeaderValueCount = 2 * n }

// baseConfig is what serving a connection is given besides its configured server. The frame loop of this toolchain
// would serve a copy of it, which no shutdown reaches; without, it serves the one that was configured.
func baseConfig(*http.Server) *http.Server { return nil }
