// Package dev is the whole actor network on one Linux machine, for development: a fabric of network namespaces, every part as
// a process of the shipped binaries in its own, origins that exist in there alone, a small program to be an actor, and a tour that
// shows each thing the network promises and asserts it. What it makes carries the name of a run, lives as long as the supervisor
// ([Up], [Tour]), and is found and removed by that name when the supervisor was killed ([Clean]). It decides nothing about traffic
// and speaks to the parts only as an operator would: by flags, files, signals, the control plane and management.
package dev

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
)

// Errors of this package.
var (
	// ErrNeeds is a machine, or a user, with which there is no development network.
	ErrNeeds = errors.New("a development network needs Linux and root, for network namespaces and control groups")
	// ErrOptions is a request that can never be served.
	ErrOptions = errors.New("not a development network")
	// ErrNone is a run that nobody supervises.
	ErrNone = errors.New("no development network runs")
	// ErrRuns is a run that somebody supervises already.
	ErrRuns = errors.New("a development network runs already")
	// ErrLeft is something of an earlier run.
	ErrLeft = errors.New("an earlier run was killed and has left something")
	// ErrTour is a tour that has shown something else than it should.
	ErrTour = errors.New("the tour failed")
)

// Bounds of Options.
const (
	maxWorkers = 16
	maxSlots   = 64
)

// Options describe a development network.
type Options struct {
	// Run is the identifier in the name of everything that is made, 1 to 12 lower-case letters and digits.
	Run string
	// Dir is where certificates, records, sockets and logs are; it is made, and removed at the end. "" is /run/sluice-RUN.
	Dir            string
	Workers, Slots int
	// Self and Worker are the executables; "" is this one, and sluice-worker beside it.
	Self, Worker string
	// Out is told, for people, what happens. Colors are for terminals.
	Out    io.Writer
	Colors bool
}

var runForm = regexp.MustCompile(`^[a-z0-9]{1,12}$`)

// complete fills in defaults and checks everything.
func (o *Options) complete() error {
	var errs []error
	wrong := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrOptions}, args...)...))
	}
	if !runForm.MatchString(o.Run) {
		wrong("the run %.40q is not 1 to 12 lower-case letters and digits", o.Run)
	}
	if o.Workers < 1 || o.Workers > maxWorkers {
		wrong("%d workers are not between 1 and %d", o.Workers, maxWorkers)
	}
	if o.Slots < 1 || o.Slots > maxSlots {
		wrong("%d slots are not between 1 and %d", o.Slots, maxSlots)
	}
	if o.Dir == "" {
		o.Dir = o.usualDir()
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		wrong("%w", err)
	}
	// The path of a Unix socket has 107 bytes at most, unix(7).
	if o.Dir = dir; len(dir) > 80 {
		wrong("the path of the directory %s is longer than 80 bytes, too long for the sockets in it", dir)
	}
	return errors.Join(errs...)
}

func (o *Options) usualDir() string { return "/run/sluice-" + o.Run }

// named are the arguments by which a command finds the run.
func (o *Options) named() string {
	if o.Dir == o.usualDir() {
		return o.Run
	}
	return o.Run + " --dir " + o.Dir
}

// needs is ErrNeeds with what is missing.
func needs(what string) error { return fmt.Errorf("%w: %s", ErrNeeds, what) }
