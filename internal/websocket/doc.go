// Package websocket is what the data plane knows of RFC 6455: whether a handshake is one, whether a backend has accepted
// it, where a frame ends, and named channels that are served here. A Hub lives as long as the process, a Multiplexer as
// long as its generation, everything else as long as one connection. The package picks no backend and moves no bytes
// between a client and one: messages of others pass unread.
package websocket
