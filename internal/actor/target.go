package actor

import "errors"

// ErrTarget is a request that does not name exactly one actor. It is answered with 404, before anything is asked of the
// control plane.
var ErrTarget = errors.New("the request does not name one actor")

// TargetField is the field by which a request names its actor, in lower case. Host names the application and is never
// looked at.
const TargetField = "ate-target-actor"

// ParseTarget reads the values of all TargetField lines of a request, in their order and as they were received but for
// the blanks around a value that the protocol does not count to it. One line with one reference is a target; none, two, or
// a list in one line is ErrTarget.
func ParseTarget(lines []string) (Ref, error) {
	if len(lines) != 1 {
		return Ref{}, ErrTarget
	}
	r, err := ParseRef(lines[0])
	if err != nil {
		return Ref{}, ErrTarget
	}
	return r, nil
}

// helperFields are spoken between the processes of an installation, in lower case.
var helperFields = map[string]bool{
	TargetField:              true,
	"x-ate-target-port":      true,
	"x-ate-original-dst":     true,
	"x-ate-original-host":    true,
	"ate-endpoint-cached":    true,
	"x-ate-assignment-stale": true,
	"ate-router-reason":      true,
}

// HelperField reports whether a field, in lower case, is spoken between the processes of an installation. Such a field is
// taken from a client's request before it is sent on, and from an actor's answer: neither may speak with our voice.
func HelperField(name string) bool { return helperFields[name] }
