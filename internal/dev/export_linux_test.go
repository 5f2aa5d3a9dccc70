package dev

import (
	"io"
	"net/netip"
	"time"
)

// Complete is complete, for tests.
func (o *Options) Complete() error { return o.complete() }

// Tables are the two tables of names.
func Tables() (gateway, actors string) { return originsFile(), actorsFile() }

// Policies are those of the demonstration.
func Policies() []string { return []string{demoPolicy, restricted} }

// HostAddresses are the addresses of all hosts of a network with two workers.
func HostAddresses() (all []netip.Prefix) {
	for _, h := range []host{routerHost, egressHost, ateapiHost, originsHost, workerHost(1), workerHost(2)} {
		all = append(all, h.addrs...)
	}
	return all
}

// Screen is a screen, for tests.
type Screen struct{ screen }

// NewScreen makes one.
func NewScreen(out io.Writer, colors bool) *Screen { return &Screen{screen{out: out, colors: colors}} }

// Step, Check, Absent and End are its methods.
func (s *Screen) Step(name, shows string) { s.step(name, shows) }

// Check is check.
func (s *Screen) Check(what string, err error, figure string) bool {
	return s.check(what, err, "%s", figure)
}

// Absent is absent.
func (s *Screen) Absent(what, why string) { s.absent(what, why) }

// End is end.
func (s *Screen) End() { s.end(1500 * time.Millisecond) }

// OneProcess is oneProcess.
func OneProcess(answers []EchoState) error { return oneProcess(answers) }
