// Package archtest keeps the shape of the repository as tests: who may import
// whom, which third-party module belongs to which room, how large files and
// functions may grow, what every package must say about itself, and which
// modules a binary links. It owns only tables and tests, lives for one test run,
// and is imported by nothing.
//
// A refused change names the rule it breaks. Rules change here, in a commit of
// their own, with the reason beside the entry.
package archtest
