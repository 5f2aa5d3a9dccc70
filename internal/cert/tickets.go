package cert

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"time"
)

const (
	// ticketLife is how long new session tickets are made with one key.
	ticketLife = 24 * time.Hour
	// oldTickets is how many earlier keys still open tickets.
	oldTickets = 2
)

// tickets are the secrets that session tickets are encrypted with, the newest first. They belong to the process, so
// that a session resumes on whatever entrypoint serves the same, before and after a reload.
type tickets struct {
	secrets [][32]byte
	due     time.Time
}

func newTickets(now time.Time) tickets {
	t := tickets{due: now}
	t.rotate(now)
	return t
}

// rotate adds a new secret when it is due, and says whether it did.
func (t *tickets) rotate(now time.Time) bool {
	if now.Before(t.due) {
		return false
	}
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // never fails
	t.secrets = append([][32]byte{secret}, t.secrets[:min(len(t.secrets), oldTickets)]...)
	t.due = now.Add(ticketLife)
	return true
}

// of derives the keys for one context: what a ticket was made under, and may be resumed under.
func (t *tickets) of(context string) [][32]byte {
	keys := make([][32]byte, len(t.secrets))
	for i, secret := range t.secrets {
		key, err := hkdf.Key(sha256.New, secret[:], nil, context, len(keys[i]))
		if err != nil { // only for lengths that are not asked for
			panic(err)
		}
		copy(keys[i][:], key)
	}
	return keys
}
