package entrypoint

import (
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
)

// keepPlaces is what a loop without sessions keeps room for.
const keepPlaces = 1024

// sessions are the sessions of a loop: by client, by place in the poll, and by how long they have been idle.
type sessions struct {
	byFlow         map[conn.Flow]*session // the newest of a client; the others are its siblings
	places         []*session             // place 0 is the clients' socket
	free           []uint32
	oldest, newest *session
}

func newSessions() sessions {
	return sessions{byFlow: make(map[conn.Flow]*session), places: make([]*session, 1)}
}

// at is the session at a place; nil when it has ended.
func (t *sessions) at(place uint32) *session {
	if int(place) >= len(t.places) {
		return nil
	}
	return t.places[place]
}

func (t *sessions) add(s *session) {
	s.sibling = t.byFlow[s.flow]
	t.byFlow[s.flow] = s
	if n := len(t.free); n > 0 {
		s.place = t.free[n-1]
		t.free = t.free[:n-1]
		t.places[s.place] = s
	} else {
		s.place = uint32(len(t.places))
		t.places = append(t.places, s)
	}
	t.append(s)
}

func (t *sessions) remove(s *session) {
	t.part(s)
	t.places[s.place] = nil
	t.free = append(t.free, s.place)
	t.unlink(s)
	if len(t.byFlow) == 0 && len(t.places) > keepPlaces {
		*t = newSessions() // gives the memory of a flood back
	}
}

// part takes s from the other sessions of its client.
func (t *sessions) part(s *session) {
	head := t.byFlow[s.flow]
	switch {
	case head != s:
		for head.sibling != s {
			head = head.sibling
		}
		head.sibling = s.sibling
	case s.sibling != nil:
		t.byFlow[s.flow] = s.sibling
	default:
		delete(t.byFlow, s.flow)
	}
}

func (t *sessions) append(s *session) {
	s.older, s.newer = t.newest, nil
	if t.newest != nil {
		t.newest.newer = s
	} else {
		t.oldest = s
	}
	t.newest = s
}

func (t *sessions) unlink(s *session) {
	if s.older != nil {
		s.older.newer = s.newer
	} else {
		t.oldest = s.newer
	}
	if s.newer != nil {
		s.newer.older = s.older
	} else {
		t.newest = s.older
	}
}

// touch makes s the one used last.
func (t *sessions) touch(s *session, now time.Time) {
	s.last = now
	if t.newest != s {
		t.unlink(s)
		t.append(s)
	}
}
