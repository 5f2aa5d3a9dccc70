package fabric

import (
	"errors"
	"fmt"
	"strings"
)

// Errors of this package.
var (
	// ErrName is a name that kernel objects cannot carry.
	ErrName = errors.New("not 1 to 48 lower-case letters, digits and hyphens")
	// ErrForeign is a socket that belongs to another network namespace than it should.
	ErrForeign = errors.New("the socket belongs to another network namespace")
	// ErrClosed is a namespace whose handle was closed.
	ErrClosed = errors.New("the handle of the network namespace is closed")
	// ErrLeft is something of a run that could not be removed.
	ErrLeft = errors.New("still there after cleaning")
)

const (
	prefix     = "sluice-"
	maxRun     = 12
	maxName    = 48
	namespaces = "/run/netns" // where ip-netns(8) keeps them, so that its commands work on ours
)

// Run is one use of the fabric. Whatever is made for it has its identifier in its name. The zero Run names nothing and
// makes nothing.
type Run struct{ id string }

// NewRun returns the run of an identifier of 1 to 12 lower-case letters and digits. It makes nothing.
func NewRun(id string) (Run, error) {
	if len(id) > maxRun || strings.Contains(id, "-") || !nameable(id) {
		return Run{}, fmt.Errorf("run %.40q: %w, or has more than %d characters or a hyphen", id, ErrName, maxRun)
	}
	return Run{id: id}, nil
}

// String is the identifier.
func (r Run) String() string { return r.id }

// all begins the names of everything of a run that stands beside things of others.
func (r Run) all() string { return prefix + r.id + "-" }

func (r Run) name(what string) (string, error) {
	if r.id == "" {
		return "", fmt.Errorf("a run without identifier: %w", ErrName)
	}
	if !nameable(what) {
		return "", fmt.Errorf("name %.60q: %w", what, ErrName)
	}
	return r.all() + what, nil
}

func nameable(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for _, c := range []byte(s) {
		if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}
