// Package gatewaytest is what tests of several rooms share: the in-process
// harness and the foreign programs that prove interoperability. It is imported
// by tests only, lives as long as one test, and must never be linked into a
// binary that ships.
package gatewaytest
