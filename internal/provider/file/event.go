package file

// change says what happened to an entry.
type change int

// The changes that are told apart.
const (
	changed change = iota + 1 // another entry stands there, or none
	created                   // as changed; its first writer may not have begun
	writing                   // somebody writes to it
	written                   // whoever wrote to it has closed it
	lost                      // events were lost: anything may have happened
)

// String returns the name.
func (c change) String() string {
	return [...]string{"none", "changed", "created", "writing", "written", "lost"}[c]
}

// event is something that happened to an entry that matters.
type event struct {
	path   string // real and absolute; "" when lost
	change change
}

// send hands an event over; it is false once the notifier is closed.
func (n *notifier) send(ev event) bool {
	select {
	case n.events <- ev:
		return true
	case <-n.done:
		return false
	}
}
