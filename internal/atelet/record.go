package atelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/sluice-proxy/sluice/internal/actor"
)

// state is where an actor is on this machine.
type state string

// States. An actor that is not on this machine has no record.
const (
	starting   state = "starting"   // the worker was told, and has not said that it is done
	active     state = "active"     // it runs on the worker
	suspending state = "suspending" // the worker was told, and has not said that it is done
	frozen     state = "frozen"     // it is kept with its memory, for any worker of the run
	over       state = "over"       // nothing of it may run any more; its user is not free before that is certain
)

// record is what is written down of one actor.
type record struct {
	Ref   string
	UID   string
	User  uint32 // that its processes have, for as long as there is a record
	State state
	// Worker and Epoch are who was told last. Of a frozen actor they mean nothing.
	Worker string
	Epoch  int64
	// Thaw says that a start goes on with what a suspension has left.
	Thaw bool `json:",omitempty"`
	// How it ended by itself; empty otherwise.
	How string `json:",omitempty"`
	// Serial changes with each write.
	Serial int64
}

// here reports whether a worker has to do with an actor now.
func (r record) here(worker string) bool { return r.Worker == worker && r.State != frozen }

// Users are the numbers of users that actors get, one each. Both ends belong to it.
type Users struct{ First, Last uint32 }

// Check returns an error unless it holds a user, and none of the system's.
func (u Users) Check() error {
	if u.First < 1000 || u.Last < u.First || u.Last >= 1<<31 || u.Last-u.First >= maxUsers {
		return fmt.Errorf("users %d-%d: must be 1 to %d users between 1000 and %d", u.First, u.Last, maxUsers, 1<<31-1)
	}
	return nil
}

// maxUsers bounds the actors that a machine knows.
const maxUsers = 10_000

// roster are the records of a machine, one file each. Whoever changes them holds the lock of the directory, so that the agents of
// several workers can. It is in a directory that does not outlive the machine's restart, as its actors do not.
type roster struct {
	dir   string
	users Users
}

const recordEnding = ".json"

func openRoster(dir string, users Users) (*roster, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return &roster{dir: dir, users: users}, nil
}

// checkUID refuses what cannot be the name of a file. The worker says what else an identifier must be.
func checkUID(uid string) error {
	if uid == "" || len(uid) > 63 || strings.Trim(uid, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fmt.Errorf("an actor's UID %.80q must be up to 63 lower-case letters, digits and hyphens", uid)
	}
	return nil
}

func (b *roster) file(uid string) string { return filepath.Join(b.dir, uid+recordEnding) }

// change lets f change the record of an actor, which has no state if there is none, and writes it down unless f fails. One that f
// leaves without a state is removed. Of its own errors, those that are no fault of the UID wrap actor.ErrUnavailable.
func (b *roster) change(uid string, f func(r *record) error) (r record, err error) {
	if err := checkUID(uid); err != nil {
		return r, err
	}
	unlock, err := lockDir(b.dir)
	if err != nil {
		return r, unwritten(err)
	}
	defer unlock()
	r, err = b.read(uid)
	if err != nil {
		return r, unwritten(err)
	}
	was := r
	if err := f(&r); err != nil || r == was {
		return r, err
	}
	if r.State == "" {
		return r, unwritten(os.Remove(b.file(uid)))
	}
	r.UID, r.Serial = uid, was.Serial+1
	return r, unwritten(b.write(r))
}

// unwritten is an error of the files: nothing is decided by it, least of all that an actor is over.
func unwritten(err error) error {
	if err != nil {
		err = fmt.Errorf("the records of actors: %w: %w", err, actor.ErrUnavailable)
	}
	return err
}

// get reads the record of an actor; one without a state is none.
func (b *roster) get(uid string) (record, error) {
	if err := checkUID(uid); err != nil {
		return record{}, err
	}
	return b.read(uid)
}

// all reads all records, in the order of their UIDs.
func (b *roster) all() ([]record, error) {
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return nil, err
	}
	var out []record
	for _, e := range entries {
		uid, ok := strings.CutSuffix(e.Name(), recordEnding)
		if !ok || checkUID(uid) != nil {
			continue
		}
		r, err := b.read(uid)
		if err != nil {
			return nil, err
		}
		if r.State != "" { // else removed meanwhile
			out = append(out, r)
		}
	}
	return out, nil
}

func (b *roster) read(uid string) (r record, err error) {
	text, err := os.ReadFile(b.file(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return record{}, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err == nil && (r.UID != uid || r.State == "" || r.User == 0) {
		err = errors.New("it is not whole")
	}
	if err != nil {
		return record{}, fmt.Errorf("the record %s: %w; once sluice-worker has removed what is left of the actor, it can be removed, too", b.file(uid), err)
	}
	return r, nil
}

// write replaces a record as a whole, so that readers need no lock.
func (b *roster) write(r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return replace(b.file(r.UID), text, 0o600)
}

// errUsers is a range of users without a free one.
var errUsers = fmt.Errorf("every user of --users is an actor's: %w", actor.ErrUnavailable)

// claim notes that an actor is about to start, and gives it a user if it has none. What it was before decides whether it is
// thawed; anew says that nothing of it can be there.
func (b *roster) claim(a actor.Actor, worker string, epoch int64) (r record, anew bool, err error) {
	r, err = b.change(a.UID, func(r *record) error {
		anew = r.State == "" || r.State == over
		if r.State == "" {
			user, err := b.freeUser()
			if err != nil {
				return err
			}
			*r = record{User: user}
		}
		thaw := r.State == frozen || r.State == suspending || r.State == starting && r.Thaw
		*r = record{Ref: a.Ref.String(), User: r.User, State: starting, Worker: worker, Epoch: epoch, Thaw: thaw, Serial: r.Serial}
		return nil
	})
	return r, anew, err
}

// freeUser is called with the lock held.
func (b *roster) freeUser() (uint32, error) {
	records, err := b.all()
	if err != nil {
		return 0, unwritten(err)
	}
	taken := make(map[uint32]bool, len(records))
	for _, r := range records {
		taken[r.User] = true
	}
	for u := b.users.First; u <= b.users.Last; u++ {
		if !taken[u] {
			return u, nil
		}
	}
	return 0, errUsers
}

// replace writes a file beside its place and moves it there.
func replace(name string, content []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
