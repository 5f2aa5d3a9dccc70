//go:build !go1.27 || http2legacy

package http2

import "net/http"

// limitFields does nothing: the frame loop of this toolchain bounds the size of a head only.
func limitFields(*http.Server, int) {}

// baseConfig is where the frame loop of this toolchain takes limits and the log from.
func baseConfig(h *http.Server) *http.Server { return h }
