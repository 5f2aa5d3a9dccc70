package egress

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluice-proxy/sluice/internal/terminal"
)

// Record is a line of the audit log: one for each decision. A request's is written when the request has ended, a tunnel's when
// it is decided.
type Record struct {
	Time     time.Time `json:"time"` // of the decision
	ID       string    `json:"id"`
	TraceID  string    `json:"trace_id,omitempty"`
	Leg      Leg       `json:"leg"`
	Atespace string    `json:"atespace,omitempty"`
	Actor    string    `json:"actor,omitempty"`
	UID      string    `json:"uid,omitempty"`
	Worker   string    `json:"worker,omitempty"`
	// Dialed is what the actor dialed, SNI and Authority whom it wanted, as far as they are spelled like a host.
	Dialed    string `json:"dialed,omitempty"`
	SNI       string `json:"sni,omitempty"`
	Authority string `json:"authority,omitempty"`
	Method    string `json:"method,omitempty"`
	Path      string `json:"path,omitempty"` // without the query
	// Rule is the index of the rule that decided; nil for none.
	Rule          *int   `json:"rule,omitempty"`
	Pattern       string `json:"pattern,omitempty"`
	PolicyVersion int64  `json:"policy_version,omitempty"`
	Verdict       string `json:"verdict"` // allow or deny
	Reason        Reason `json:"reason"`
	Detail        string `json:"detail,omitempty"`
	// Router took the request, and led it to Service; "" none did, and it went to its origin. Middleware has answered it.
	Router     string `json:"router,omitempty"`
	Service    string `json:"service,omitempty"`
	Middleware string `json:"middleware,omitempty"`
	// Upstream is the address that was dialed last for this destination, or the URL of the service's backend.
	Upstream  string `json:"upstream,omitempty"`
	Status    int    `json:"status,omitempty"`
	Code      string `json:"code,omitempty"` // of the error that ended it
	BytesUp   int64  `json:"bytes_up"`
	BytesDown int64  `json:"bytes_down"`
	// Duration is in milliseconds.
	Duration float64 `json:"duration_ms"`
}

// decided fills in a verdict.
func (r *Record) decided(v Verdict) {
	r.Verdict, r.Reason, r.Detail, r.Status = "deny", v.Reason, clip(v.Detail), v.Status
	if v.OK() {
		r.Verdict = "allow"
	}
	if v.Ruled {
		i := v.Match.Rule
		r.Rule, r.Pattern = &i, v.Match.Pattern
	}
}

// maxAuditText bounds what an actor can put into a member of a line, in bytes.
const maxAuditText = 1024

func clip(s string) string {
	if len(s) > maxAuditText {
		return s[:maxAuditText]
	}
	return s
}

// auditQueue is how many lines may wait to be written.
const auditQueue = 4096

// Audit writes records as JSON lines, in their order. When nobody takes the lines and the queue is full, lines are lost and
// counted: traffic does not wait for a log. Run must run. Safe for concurrent use.
type Audit struct {
	out   io.Writer
	log   *slog.Logger
	queue chan []byte
	lost  atomic.Uint64

	// Of Run.
	torn    bool // the last line was written in part
	failing bool // the last write failed
}

// NewAudit makes a log that writes to out.
func NewAudit(out io.Writer, log *slog.Logger) *Audit {
	return &Audit{out: out, log: log, queue: make(chan []byte, auditQueue)}
}

// Lost is how many lines were not written.
func (a *Audit) Lost() uint64 { return a.lost.Load() }

// Write takes a record.
func (a *Audit) Write(r *Record) {
	line, err := json.Marshal(r)
	if err != nil { // a record is plain data
		a.lost.Add(1)
		return
	}
	select {
	case a.queue <- append([]byte(terminal.Line(string(line))), '\n'): // JSON escapes less than what a terminal acts on
	default:
		a.lost.Add(1)
	}
}

// Run writes until ctx ends, and then what has been taken before.
func (a *Audit) Run(ctx context.Context) {
	for {
		select {
		case line := <-a.queue:
			a.put(line)
		case <-ctx.Done():
			for {
				select {
				case line := <-a.queue:
					a.put(line)
				default:
					return
				}
			}
		}
	}
}

// put writes a line. One of which a part was written is ended before the next one, which would be lost with it otherwise.
func (a *Audit) put(line []byte) {
	if a.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := a.out.Write(line)
	a.torn = n < len(line) && (a.torn || n > 0)
	if err != nil {
		a.lost.Add(1)
	}
	if failed := err != nil; failed != a.failing {
		a.failing = failed
		if failed {
			a.log.Error("writing the audit log: lines are lost until it succeeds", "error", err)
		} else {
			a.log.Info("the audit log is written again", "lost", a.lost.Load())
		}
	}
}
