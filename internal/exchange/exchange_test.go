package exchange_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// client is a Downstream that keeps what it is given.
type client struct {
	exchange.Downstream
	status  int
	body    string
	lasts   int
	aborted bool
	fail    error
}

func (c *client) SendHead(x *exchange.Exchange, body []byte, last bool) error {
	c.status = x.Response.Status
	return c.SendBody(x, body, last)
}

func (c *client) SendBody(_ *exchange.Exchange, body []byte, last bool) error {
	c.body += string(body)
	if last {
		c.lasts++
	}
	return c.fail
}

func (c *client) Abort() { c.aborted = true }

type rung struct{}

func (rung) Interrupt() {}

// begun returns an exchange that waits for something upstream.
func begun() (*exchange.Exchange, *client) {
	x, c := new(exchange.Exchange), new(client)
	x.Begin(c, new(conn.Alarm), &conn.Info{}, time.Now())
	x.Guard.Arm(rung{}, 0)
	return x, c
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestDepartAndForce(t *testing.T) {
	for _, tc := range []struct {
		name    string
		do      func(*exchange.Exchange)
		cause   conn.Cause
		err     error
		gone    bool
		outcome exchange.Outcome
	}{
		{"depart", (*exchange.Exchange).Depart, conn.CauseDeparted, exchange.ErrDeparted, true, exchange.OutcomeDisconnected},
		{"force", (*exchange.Exchange).Force, conn.CauseDrain, exchange.ErrForced, false, exchange.OutcomeDrained},
	} {
		for _, when := range []string{"asked before", "asked after", "twice"} {
			t.Run(tc.name+" "+when, func(t *testing.T) {
				x, c := begun()
				if when == "asked before" {
					if ch, ctx := x.Departed(), x.Context(); closed(ch) || ctx.Err() != nil {
						t.Fatal("ended at the start")
					}
				}
				tc.do(x)
				if when == "twice" {
					_, _ = x.Departed(), x.Context()
					tc.do(x)
				}
				if !closed(x.Departed()) || context.Cause(x.Context()) != tc.err || x.Gone() != tc.gone {
					t.Errorf("closed %v, cause %v, gone %v", closed(x.Departed()), context.Cause(x.Context()), x.Gone())
				}
				if got := x.Guard.Disarm(); got != tc.cause {
					t.Errorf("guard %d, want %d", got, tc.cause)
				}
				x.Fail(errors.New("waited in vain"))
				if x.Record.Outcome != tc.outcome || !c.aborted || c.status != 0 {
					t.Errorf("outcome %v, aborted %v, status %d", x.Record.Outcome, c.aborted, c.status)
				}
				x.Begin(c, x.Guard, x.Conn, time.Now())
				if closed(x.Departed()) || x.Gone() || x.Context().Err() != nil {
					t.Error("the next exchange inherits the end")
				}
				x.End(exchange.OutcomeOK)
				if x.Context().Err() == nil {
					t.Error("the context outlives the exchange")
				}
			})
		}
	}
}

// What the client has set as its own deadline ends every context from then on, whether one was asked for before or not, and
// only this exchange's.
func TestExpire(t *testing.T) {
	for _, before := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			x, c := begun()
			early := context.Background()
			if before {
				early = x.Context()
			}
			x.Expire(time.Now().Add(time.Second))
			x.Expire(time.Now().Add(time.Millisecond))
			ctx := x.Context()
			if d, ok := ctx.Deadline(); !ok || time.Until(d) != time.Second || ctx != x.Context() {
				t.Errorf("the deadline is %v %v", d, ok)
			}
			<-ctx.Done()
			if context.Cause(ctx) != exchange.ErrExpired || !errors.Is(exchange.ErrExpired, context.DeadlineExceeded) || early.Err() != nil || x.Gone() {
				t.Errorf("cause %v; before %v", context.Cause(ctx), early.Err())
			}
			x.End(exchange.OutcomeOK)
			if before && early.Err() == nil {
				t.Error("a context outlives the exchange")
			}
			x.Begin(c, x.Guard, x.Conn, time.Now())
			if _, ok := x.Context().Deadline(); ok {
				t.Error("the next exchange inherits the deadline")
			}
			x.Expire(time.Now().Add(time.Hour))
			ctx = x.Context()
			x.Depart()
			if context.Cause(ctx) != exchange.ErrDeparted {
				t.Errorf("cause %v", context.Cause(ctx))
			}
			x.End(exchange.OutcomeOK)
		})
	}
}

func TestBothEnds(t *testing.T) {
	x, _ := begun()
	ch := x.Departed()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(x.Depart)
		wg.Go(x.Force)
		wg.Go(func() { <-x.Departed(); <-x.Context().Done() })
	}
	wg.Wait()
	if !closed(ch) {
		t.Error("not told")
	}
	x.Guard.Disarm()
	x.End(exchange.OutcomeOK)
}

func TestFail(t *testing.T) {
	limited := &exchange.Error{Status: 504, Code: exchange.CodeResponseTimeout, Public: "Timeout", Outcome: exchange.OutcomeFailed, Limit: "request_timeout"}
	for _, tc := range []struct {
		name    string
		err     error
		sent    bool
		status  int
		outcome exchange.Outcome
		code    exchange.Code
		body    string
	}{
		{"unknown", errors.New("secret cause"), false, 500, exchange.OutcomeFailed, exchange.CodeInternal, `{"error":"Internal server error","code":"internal_error","request_id":"r\"1"}`},
		{
			"rejected", exchange.Reject(429, exchange.CodeRateLimited, "Too\nmany\xff"), false, 429, exchange.OutcomeRejected, exchange.CodeRateLimited,
			`{"error":"Too\u000amany\u00ff","code":"rate_limited","request_id":"r\"1"}`,
		},
		{"limit before the head", limited, false, 504, exchange.OutcomeFailed, exchange.CodeResponseTimeout, ""},
		{"limit after the head", limited, true, 200, exchange.OutcomeTimeout, exchange.CodeResponseTimeout, "part"},
		{"broken after the head", errors.New("x"), true, 200, exchange.OutcomeAborted, exchange.CodeInternal, "part"},
		{"departed", exchange.ErrDeparted, false, 0, exchange.OutcomeDisconnected, exchange.CodeClientGone, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x, c := begun()
			x.Record.RequestID = `r"1`
			if tc.sent {
				x.Response.Status = 200
				_ = x.Send([]byte("part"), false)
			}
			x.Fail(nil)
			x.Fail(tc.err)
			if c.status != tc.status || x.Record.Outcome != tc.outcome || x.Record.Code != tc.code || tc.body != "" && c.body != tc.body {
				t.Errorf("status %d, outcome %v, code %s, body %s", c.status, x.Record.Outcome, x.Record.Code, c.body)
			}
			if whole := c.lasts == 1 && !c.aborted; whole == (tc.sent || tc.status == 0) {
				t.Errorf("%d ends, aborted %v", c.lasts, c.aborted)
			}
			if !errors.Is(x.Record.Err, tc.err) {
				t.Errorf("the operator sees %v", x.Record.Err)
			}
		})
	}
}

// An answer to HEAD has no body, whatever is handed over: an error's, say.
func TestNoBytesOfHead(t *testing.T) {
	for method, want := range map[string]int64{"HEAD": 0, "GET": int64(len(`{"error":"No route matched","code":"no_route","request_id":""}`))} {
		x, _ := begun()
		x.Request.Method = []byte(method)
		x.Fail(exchange.Reject(404, exchange.CodeNoRoute, "No route matched"))
		if r := &x.Record; r.BytesOut != want || (r.FirstByteAt > 0) != (want > 0) {
			t.Errorf("%s: %d bytes, the first after %v", method, r.BytesOut, r.FirstByteAt)
		}
	}
}
