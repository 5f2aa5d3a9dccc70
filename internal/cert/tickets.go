package cert

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"time"
)

const (
	// ticketLife is how long new session tickets are made with one key.
	ticketLife = 24 * time.Hour
	// oldTickets is how many earlier keys still open tickets.
	oldTickets = 2
)

// tickets are the secrets that session tickets are encrypted with, the newest first. They belong to the process, so
// that a session resumes on whatever entrypoint serves the same files, before and after a reload.
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

// of derives the keys for one pair of files, so that a ticket never resumes a session under other files or another
// minimum version than those it was made under.
func (t *tickets) of(f Files) [][32]byte {
	keys := make([][32]byte, len(t.secrets))
	for i, secret := range t.secrets {
		info := fmt.Sprintf("session tickets %q %q %d %t", f.CertFile, f.KeyFile, f.MinVersion, f.HTTP1Only)
		key, err := hkdf.Key(sha256.New, secret[:], nil, info, len(keys[i]))
		if err != nil { // only for lengths that are not asked for
			panic(err)
		}
		copy(keys[i][:], key)
	}
	return keys
}
