// Package actor knows what an actor is called and where it is to be found: references and their grammar, the SPIFFE IDs
// of actors and of the workers that host them, and the field by which a request names its target. Everything here is a
// value or a pure function of values, and lives as long as its holder. The package knows no wire: neither messages of the
// control plane nor certificates reach it.
package actor

import (
	"errors"
	"strings"
)

// ErrRef is a text that names no actor.
var ErrRef = errors.New("not an actor reference of the form atespace/name, each of 1 to 63 lower-case letters, digits and hyphens")

// Ref names an actor. It says nothing of which one: an actor that was deleted and created again has the same Ref and
// another UID, so whatever is kept for an actor is kept by UID as well. The zero Ref names none.
type Ref struct {
	Atespace string
	Name     string
}

// ParseRef reads atespace/name. Nothing is trimmed, folded or decoded: what is not exactly of this form is ErrRef.
func ParseRef(s string) (Ref, error) {
	atespace, name, _ := strings.Cut(s, "/")
	if !ValidName(atespace) || !ValidName(name) {
		return Ref{}, ErrRef
	}
	return Ref{Atespace: atespace, Name: name}, nil
}

// String returns atespace/name, which ParseRef reads back if both are valid.
func (r Ref) String() string { return r.Atespace + "/" + r.Name }

// Check returns what is wrong with a reference that a message holds in a field: nothing, or a fault for each part.
func (r Ref) Check(field string) Faults {
	var f Faults
	f.Name(field+".atespace", r.Atespace)
	f.Name(field+".name", r.Name)
	return f
}

// Name adds a fault unless the value of a field is a name.
func (f *Faults) Name(field, value string) {
	if !ValidName(value) {
		f.Add(field, nameReason, value)
	}
}

// CheckName refuses, with InvalidArgument, what has another value than a name in a field.
func CheckName(field, value string) error {
	if ValidName(value) {
		return nil
	}
	return Refuse(InvalidArgument, field+": "+nameReason, value)
}

// nameReason says that a text, the one argument, is no name, and what would be one.
const nameReason = "%.80q is not 1 to 63 lower-case letters, digits and hyphens with a letter or digit at both ends"

// maxLabel is the length of a DNS label, and so of every name.
const maxLabel = 63

// ValidName reports whether s is the name of an atespace, an actor or another resource: a DNS label after RFC 1123,
// lower-case.
func ValidName(s string) bool {
	if len(s) == 0 || len(s) > maxLabel || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}
