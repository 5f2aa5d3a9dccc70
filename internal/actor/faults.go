package actor

import (
	"fmt"
	"strings"
)

// maxFaults bounds how much is told of one message. What comes after is not added.
const maxFaults = 100

// Fault is one thing that is wrong with a message.
type Fault struct {
	// Field is its path, with the names of the wire, such as "egress_policy.rules[0].http.hostnames[2]".
	Field string
	// Reason says what is wrong, and repeats at most a short part of the value.
	Reason string
}

// Faults is everything that is wrong with a message, the first 100 in the order of its fields. It is an error: callers
// that have none return Err, which is then nil.
type Faults []Fault

// Add adds a fault.
func (f *Faults) Add(field, format string, args ...any) {
	if !f.Full() {
		*f = append(*f, Fault{Field: field, Reason: fmt.Sprintf(format, args...)})
	}
}

// Full reports whether no more faults are added: who looks for them can stop.
func (f Faults) Full() bool { return len(f) >= maxFaults }

// Err returns the faults as an error, nil without any.
func (f Faults) Err() error {
	if len(f) == 0 {
		return nil
	}
	return f
}

// Error lists all faults, each as "field: reason".
func (f Faults) Error() string {
	texts := make([]string, len(f))
	for i, fault := range f {
		texts[i] = fault.Field + ": " + fault.Reason
	}
	return strings.Join(texts, "; ")
}
