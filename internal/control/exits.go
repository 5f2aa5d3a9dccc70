package control

import (
	"slices"
	"sync"
)

// maxUntold bounds the exits that the control plane has not taken yet. More of them wait in HostOptions.Exits.
const maxUntold = 256

// untold are the exits that the control plane has not taken yet, over all streams of a worker. Its methods are safe for
// concurrent use.
type untold struct {
	changed chan struct{} // holds one: there may be something to tell, or room

	mu       sync.Mutex // guards the rest
	last     uint64
	list     []numberedExit
	starting map[string]int // orders to start that are under way, by UID
}

type numberedExit struct {
	Exit
	id   uint64
	told bool // on this stream
}

func newUntold() *untold {
	return &untold{changed: make(chan struct{}, 1), starting: map[string]int{}}
}

func (u *untold) wake() {
	select {
	case u.changed <- struct{}{}:
	default:
	}
}

// again lets everything be told on another stream.
func (u *untold) again() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := range u.list {
		u.list[i].told = false
	}
}

func (u *untold) full() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.list) >= maxUntold
}

func (u *untold) add(e Exit) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last++
	u.list = append(u.list, numberedExit{Exit: e, id: u.last})
}

// next returns what is to be told next.
func (u *untold) next() (numberedExit, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for i := 0; i < len(u.list); {
		e := u.list[i]
		switch {
		case e.told || u.starting[e.UID] > 0:
			i++
		case e.Holds != nil && !e.Holds():
			u.list = slices.Delete(u.list, i, i+1)
		default:
			u.list[i].told = true
			return e, true
		}
	}
	return numberedExit{}, false
}

// taken forgets an exit that has been taken.
func (u *untold) taken(id uint64) {
	u.mu.Lock()
	u.list = slices.DeleteFunc(u.list, func(e numberedExit) bool { return e.id == id })
	u.mu.Unlock()
	u.wake()
}

// begin forgets how an actor has ended that is to be started again, and holds back how it ends from now on until the outcome has
// been sent and end is called.
func (u *untold) begin(uid string) (end func()) {
	u.mu.Lock()
	u.starting[uid]++
	u.list = slices.DeleteFunc(u.list, func(e numberedExit) bool { return e.UID == uid })
	u.mu.Unlock()
	u.wake()
	return func() {
		u.mu.Lock()
		if u.starting[uid]--; u.starting[uid] == 0 {
			delete(u.starting, uid)
		}
		u.mu.Unlock()
		u.wake()
	}
}
