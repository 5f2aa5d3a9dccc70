package actor

import (
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

// What tests ask of the inside.

func Refused(ref Ref, stay service.Stay, err error) *exchange.Error { return refused(ref, stay, err) }
func Unreached(ref Ref, err error) *exchange.Error                  { return unreached(ref, err) }
func RunOut(ref Ref, err error) *exchange.Error                     { return runOut(ref, err) }
func Passes(err error) bool                                         { return passes(err) }
func RetryOf(err error) service.Retry                               { return retryOf(err) }
func Caller(info *conn.Info) string                                 { return caller(info) }
func Private(name []byte) bool                                      { return helpers{}.Has(name) }

// Assignments is the memory of places.
type Assignments struct{ a *assignments }

// Place is a place and its generation.
type Located struct{ at located }

func NewAssignments(ttl time.Duration) Assignments { return Assignments{newAssignments(ttl)} }

func (a Assignments) Put(x Actor, resumed bool) Located { return Located{a.a.put(x, resumed)} }
func (a Assignments) Forget(at Located)                 { a.a.forget(at.at) }
func (a Assignments) Len() int                          { return a.a.len() }
func (a Assignments) Get(ref Ref) (Located, bool) {
	at, ok := a.a.get(ref)
	return Located{at}, ok
}
func (l Located) UID() string   { return l.at.actor.UID }
func (l Located) Resumed() bool { return l.at.resumed }

// EndWay begins a way, has it count to n, and ends it.
func EndWay(w *Ways, clock *conn.Clock, n uint64) {
	ended := newWay(config.ActorWay{}, Link{}, clock)
	ended.refs = 1
	ended.resumes.Store(n)
	ended.hits.Store(n)
	ended.stale.Store(n)
	w.mu.Lock()
	w.all[ended.cfg] = ended
	w.mu.Unlock()
	w.release(ended)
	w.retiring.Wait()
}

const MaxAssignments = maxAssignments
