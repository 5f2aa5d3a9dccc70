// Package route is the rule language of routers: it parses a rule expression, compiles it, and finds the first of
// many rules that matches a request.
//
// It owns the grammar (matchers joined by !, && and ||), the meaning of every matcher, the normal form of hosts and
// paths that rules are compared with, and the index that keeps a lookup flat from ten routes to ten thousand.
//
// A [Rule] is immutable and lives as long as anybody holds it; a [Table] is built once for a generation and an
// entrypoint and is read by all requests at the same time without locks.
//
// The package knows no configuration file, no connection, no header map and no service: a request is a handful of
// plain values ([Input]), a result is the index of an entry.
package route
