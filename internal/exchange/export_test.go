package exchange

import "slices"

// Added reports whether a field was added to those that were received.
func (f *Fields) Added() bool {
	return slices.ContainsFunc(f.lines, func(l line) bool { return l.added })
}

// EscapeGRPC is the spelling of texts in grpc-message.
var EscapeGRPC = escapeGRPC
