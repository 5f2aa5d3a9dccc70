// Package store keeps what a control plane must not lose: records with a version each, and the list of their changes. It
// knows no record's meaning. A [Store] lives as long as the process; a [Tx] as long as the function that it is given to.
// Memory keeps everything in the process and nothing beyond it.
package store

import (
	"context"
	"errors"
	"time"
)

// Errors of records. They end the transaction like any other error that its function returns.
var (
	// ErrNotFound is a record that is not there.
	ErrNotFound = errors.New("no such record")
	// ErrExists is a record that is there already.
	ErrExists = errors.New("the record exists already")
	// ErrVersion is a record that has changed since it was read.
	ErrVersion = errors.New("the record has another version")
	// ErrTooLarge is a value of more than MaxValue bytes.
	ErrTooLarge = errors.New("the value is too large")
	// ErrForgotten is a revision whose changes are not kept any more.
	ErrForgotten = errors.New("changes since that revision are not kept any more")
)

const (
	// MaxValue bounds a value, in bytes.
	MaxValue = 1 << 20
	// MaxList bounds what List and Changes return.
	MaxList = 1000
)

// Key names a record. Kind and Name are not empty. Group is whatever records are listed by; it may be empty.
type Key struct {
	Kind  string
	Group string
	Name  string
}

// Record is one version of a record.
type Record struct {
	Key
	// UID is what the creator gave: a record that is deleted and created again has another.
	UID string
	// Version is 1 at first and grows by 1 with each write.
	Version int64
	Created time.Time
	Updated time.Time
	// Value is the holder's own copy.
	Value []byte
}

// Action is what a change did.
type Action string

// Actions.
const (
	Created Action = "created"
	Updated Action = "updated"
	Deleted Action = "deleted"
)

// Change is one write. It is kept in the same transaction.
type Change struct {
	// Revision grows with each change of the whole store, by 1.
	Revision int64
	Time     time.Time
	Action   Action
	Key      Key
	UID      string
	// Version is the one written, or the last one of what was deleted.
	Version int64
}

// Tx reads and writes records. What it has written it reads; nobody else does before the end. It is for one goroutine.
type Tx interface {
	// Get returns a record, or ErrNotFound.
	Get(Key) (Record, error)
	// List returns up to limit records of a kind and a group, 1 to MaxList, in the order of their names, from the first
	// name behind after.
	List(kind, group, after string, limit int) ([]Record, error)
	// Create makes a record. One that is there is ErrExists.
	Create(k Key, uid string, value []byte) (Record, error)
	// Update replaces the value of a record, which must have the version given (else ErrVersion) and must be there (else
	// ErrNotFound).
	Update(k Key, version int64, value []byte) (Record, error)
	// Delete removes a record, on the same terms as Update.
	Delete(k Key, version int64) error
	// Revision is the one of the last change, 0 before the first. With a write of this transaction it has grown.
	Revision() (int64, error)
	// Changes returns up to limit changes after a revision, the oldest first, or ErrForgotten.
	Changes(after int64, limit int) ([]Change, error)
}

// Store runs transactions, one after the other as far as anybody can tell. The function must not call the store, must not
// block on anything else, and may be called again when the transaction has to be: it has no effect but on the Tx. Its
// error, or panic, undoes what it did and is passed on.
type Store interface {
	// Update runs a transaction that may write.
	Update(ctx context.Context, f func(Tx) error) error
	// View runs one that may not: every write is an error.
	View(ctx context.Context, f func(Tx) error) error
	// Close ends the store. Transactions after it are refused.
	Close() error
}
