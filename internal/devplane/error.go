package devplane

import "fmt"

// Code is why something was refused. The codes are those of gRPC that the contract of the control plane uses.
type Code uint8

// Codes.
const (
	InvalidArgument Code = iota + 1
	NotFound
	AlreadyExists
	FailedPrecondition
	ResourceExhausted
	Aborted
	Unavailable
	Internal
)

// String is the name of the code.
func (c Code) String() string {
	return [...]string{
		"OK", "InvalidArgument", "NotFound", "AlreadyExists", "FailedPrecondition", "ResourceExhausted", "Aborted", "Unavailable", "Internal",
	}[c]
}

// Error is a refusal, with what is told to the caller.
type Error struct {
	Code Code
	Text string
	Err  error // what it comes from; may be nil
}

// Error returns the text alone, which is what a client sees beside the code.
func (e *Error) Error() string { return e.Text }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

func refuse(c Code, format string, args ...any) *Error {
	e := &Error{Code: c, Text: fmt.Sprintf(format, args...)}
	for _, a := range args {
		if err, ok := a.(error); ok {
			e.Err = err
		}
	}
	return e
}
