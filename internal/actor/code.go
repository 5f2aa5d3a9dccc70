package actor

import (
	"errors"
	"fmt"
)

// ErrUnavailable is the side of the sandboxes when it cannot be reached, and the same may be tried again.
var ErrUnavailable = errors.New("the worker is not available")

// ErrAnswer is an answer of the control plane that cannot be used.
var ErrAnswer = errors.New("an answer that cannot be used")

// Code is why the control plane refuses something. The values and the names are those of gRPC, which carries them.
type Code uint8

// Codes.
const (
	Canceled           Code = 1
	Unknown            Code = 2
	InvalidArgument    Code = 3
	DeadlineExceeded   Code = 4
	NotFound           Code = 5
	AlreadyExists      Code = 6
	PermissionDenied   Code = 7
	ResourceExhausted  Code = 8
	FailedPrecondition Code = 9
	Aborted            Code = 10
	OutOfRange         Code = 11
	Unimplemented      Code = 12
	Internal           Code = 13
	Unavailable        Code = 14
	DataLoss           Code = 15
	Unauthenticated    Code = 16
)

var codeNames = [...]string{
	"OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists", "PermissionDenied", "ResourceExhausted",
	"FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable", "DataLoss", "Unauthenticated",
}

// String is the name of the code.
func (c Code) String() string {
	if int(c) < len(codeNames) {
		return codeNames[c]
	}
	return fmt.Sprintf("Code(%d)", uint8(c))
}

// Error is a refusal by the control plane, the same on both sides of the wire.
type Error struct {
	Code Code
	Text string // what the caller is told
	Err  error  // what it comes from, which the caller is not told; may be nil
}

// Error returns the text alone, which is what a client sees beside the code.
func (e *Error) Error() string { return e.Text }

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Refuse makes a refusal. An error among the arguments is kept as what it comes from.
func Refuse(c Code, format string, args ...any) *Error {
	e := &Error{Code: c, Text: fmt.Sprintf(format, args...)}
	for _, a := range args {
		if err, ok := a.(error); ok {
			e.Err = err
		}
	}
	return e
}
