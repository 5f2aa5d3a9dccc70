package acl

import (
	"fmt"
	"slices"
	"strings"
)

// Severity tells an error, which refuses the text, from a warning.
type Severity int

// The severities. The zero Severity is Error, so that a forgotten one refuses.
const (
	Error Severity = iota
	Warning
)

// String returns "error" or "warning".
func (s Severity) String() string {
	if s == Warning {
		return "warning"
	}
	return "error"
}

// The codes this package reports. They are stable: tools match on them.
const (
	CodeUnexpectedToken    = "acl.parse.unexpected_token"
	CodeExpectedToken      = "acl.parse.expected_token"
	CodeUnexpectedEOF      = "acl.parse.unexpected_eof"
	CodeDuplicateAttribute = "acl.parse.duplicate_attribute"
	CodeNumberRange        = "acl.parse.number_range"
	CodeInvalidEncoding    = "acl.parse.invalid_encoding"
	CodeDocumentBytes      = "acl.limit.document_bytes"
	CodeNestingDepth       = "acl.limit.nesting_depth"
	CodeCollectionItems    = "acl.limit.collection_items"
	CodeTokenBytes         = "acl.limit.token_bytes"
	// CodeTruncated marks the one entry that says that more was found than
	// MaxDiagnostics; see Diagnostics.Truncated.
	CodeTruncated = "acl.limit.diagnostics"
)

// The limits of the language. A text that exceeds one is refused with the code
// of that limit, and nothing after that place is looked at.
const (
	MaxDocumentBytes   = 1 << 20
	MaxNestingDepth    = 64      // open `{ [ (`; a bare top-level attribute counts as one level
	MaxCollectionItems = 10_000  // per document, body, label list, list, object, argument list
	MaxTokenBytes      = 1 << 18 // of one token as written; comments are not tokens
	MaxDiagnostics     = 100     // collected; see Diagnostics.Add
)

// Diagnostic is one finding about a source text. Message and Hint are for the
// operator; those of this package name token kinds and positions and never
// quote the source, since it holds secrets.
type Diagnostic struct {
	Severity Severity
	Code     string // stable, dotted; may be empty
	Message  string // lower case, one line, no full stop
	Hint     string // what to do about it, one line; may be empty
	Span     Span   // the zero Span means: the configuration as a whole
	// ShowValue says that the string literal at Span is the subject and its key
	// is not secret: excerpts then show its content instead of a mask.
	ShowValue bool
}

// Error formats the diagnostic as `file:line:col: message`, so that a
// *Diagnostic serves as an error.
func (d *Diagnostic) Error() string {
	if at := d.Span.String(); at != "" {
		return at + ": " + d.Message
	}
	return d.Message
}

// String formats the start as `file:line:col`, leaving out what is not known.
func (s Span) String() string {
	switch {
	case s.IsZero():
		return s.File
	case s.File == "":
		return fmt.Sprintf("%d:%d", s.Start.Line, s.Start.Col)
	}
	return fmt.Sprintf("%s:%d:%d", s.File, s.Start.Line, s.Start.Col)
}

// Diagnostics is a list of findings. It is an error when it HasErrors; use Err
// to avoid an empty list that is not nil.
type Diagnostics []*Diagnostic

// Add appends d. When MaxDiagnostics are held already it appends, once, an
// entry with CodeTruncated instead, and reports false: the caller may stop.
func (ds *Diagnostics) Add(d *Diagnostic) bool {
	if len(*ds) < MaxDiagnostics {
		*ds = append(*ds, d)
		return true
	}
	if !ds.Truncated() {
		*ds = append(*ds, &Diagnostic{
			Code:    CodeTruncated,
			Message: fmt.Sprintf("more than %d findings: the rest is not listed", MaxDiagnostics),
			Span:    Span{File: d.Span.File},
		})
	}
	return false
}

// Truncated reports whether findings were left out because there were more
// than MaxDiagnostics.
func (ds Diagnostics) Truncated() bool {
	return slices.ContainsFunc(ds, func(d *Diagnostic) bool { return d.Code == CodeTruncated })
}

// HasErrors reports whether any entry is an Error.
func (ds Diagnostics) HasErrors() bool {
	return slices.ContainsFunc(ds, func(d *Diagnostic) bool { return d.Severity == Error })
}

// Err returns ds as an error when it HasErrors, else nil.
func (ds Diagnostics) Err() error {
	if ds.HasErrors() {
		return ds
	}
	return nil
}

// Error lists every finding as `file:line:col: message`, one a line. It holds no
// excerpts, so it is safe to log.
func (ds Diagnostics) Error() string {
	lines := make([]string, len(ds))
	for i, d := range ds {
		lines[i] = d.Error()
	}
	return strings.Join(lines, "\n")
}

// Sort orders by file, then position, then code; findings about a whole file
// come first, the truncation mark last.
func (ds Diagnostics) Sort() {
	slices.SortStableFunc(ds, func(a, b *Diagnostic) int {
		if ta, tb := a.Code == CodeTruncated, b.Code == CodeTruncated; ta != tb {
			if ta {
				return 1
			}
			return -1
		}
		if c := strings.Compare(a.Span.File, b.Span.File); c != 0 {
			return c
		}
		if a.Span.Start.Offset != b.Span.Start.Offset {
			return a.Span.Start.Offset - b.Span.Start.Offset
		}
		return strings.Compare(a.Code, b.Code)
	})
}
