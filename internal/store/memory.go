package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// keptChanges is how many changes a Memory keeps.
const keptChanges = 10000

var (
	errClosed   = errors.New("the store is closed")
	errReadOnly = errors.New("writing in a transaction that only reads")
	errArgument = errors.New("not a valid argument")
)

// Memory is a Store for tests and for control planes that begin empty each time.
type Memory struct {
	mu       sync.RWMutex // held over a transaction
	records  map[Key]Record
	changes  []Change // the last keptChanges
	revision int64
	closed   bool
}

// NewMemory makes an empty store.
func NewMemory() *Memory { return &Memory{records: make(map[Key]Record)} }

// Update implements Store.
func (m *Memory) Update(ctx context.Context, f func(Tx) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	tx := &memoryTx{memory: m, written: make(map[Key]*Record), revision: m.revision, writes: true}
	if err := m.run(ctx, tx, f); err != nil {
		return err
	}
	for k, r := range tx.written {
		if r == nil {
			delete(m.records, k)
		} else {
			m.records[k] = *r
		}
	}
	m.revision = tx.revision
	m.changes = append(m.changes, tx.changes...)
	if extra := len(m.changes) - keptChanges; extra > 0 {
		m.changes = slices.Delete(m.changes, 0, extra)
	}
	return nil
}

// View implements Store.
func (m *Memory) View(ctx context.Context, f func(Tx) error) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.run(ctx, &memoryTx{memory: m, revision: m.revision}, f)
}

func (m *Memory) run(ctx context.Context, tx *memoryTx, f func(Tx) error) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if m.closed {
		return errClosed
	}
	return f(tx)
}

// Close implements Store.
func (m *Memory) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}

// memoryTx is a transaction: what it has written lies over what is there, until it is committed.
type memoryTx struct {
	memory   *Memory
	written  map[Key]*Record // nil for what was deleted
	changes  []Change
	revision int64
	writes   bool
}

func (t *memoryTx) Get(k Key) (Record, error) {
	r, found := t.memory.records[k]
	if w, touched := t.written[k]; touched {
		if found = w != nil; found {
			r = *w
		}
	}
	if !found {
		return Record{}, fmt.Errorf("%s %q %q: %w", k.Kind, k.Group, k.Name, ErrNotFound)
	}
	r.Value = slices.Clone(r.Value)
	return r, nil
}

func (t *memoryTx) List(kind, group, after string, limit int) ([]Record, error) {
	if limit < 1 || limit > MaxList {
		return nil, fmt.Errorf("a limit of %d: %w", limit, errArgument)
	}
	names := map[string]bool{}
	for k := range t.memory.records {
		if k.Kind == kind && k.Group == group {
			names[k.Name] = true
		}
	}
	for k, r := range t.written {
		if k.Kind == kind && k.Group == group {
			names[k.Name] = r != nil
		}
	}
	maps.DeleteFunc(names, func(name string, here bool) bool { return !here || name <= after })
	var out []Record
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if len(out) == limit {
			break
		}
		r, err := t.Get(Key{Kind: kind, Group: group, Name: name})
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

func (t *memoryTx) Create(k Key, uid string, value []byte) (Record, error) {
	if k.Kind == "" || k.Name == "" || uid == "" {
		return Record{}, fmt.Errorf("a record without a kind, a name or a UID: %w", errArgument)
	}
	if _, err := t.Get(k); err == nil {
		return Record{}, fmt.Errorf("%s %q %q: %w", k.Kind, k.Group, k.Name, ErrExists)
	}
	now := time.Now()
	return t.put(Created, Record{Key: k, UID: uid, Version: 1, Created: now, Updated: now}, value)
}

func (t *memoryTx) Update(k Key, version int64, value []byte) (Record, error) {
	r, err := t.at(k, version)
	if err != nil {
		return Record{}, err
	}
	r.Version++
	r.Updated = time.Now()
	return t.put(Updated, r, value)
}

func (t *memoryTx) Delete(k Key, version int64) error {
	r, err := t.at(k, version)
	if err != nil {
		return err
	}
	if !t.writes {
		return errReadOnly
	}
	t.written[k] = nil
	t.log(Deleted, r)
	return nil
}

// at returns a record if it has a version.
func (t *memoryTx) at(k Key, version int64) (Record, error) {
	r, err := t.Get(k)
	if err == nil && r.Version != version {
		err = fmt.Errorf("%s %q %q has version %d, not %d: %w", k.Kind, k.Group, k.Name, r.Version, version, ErrVersion)
	}
	return r, err
}

func (t *memoryTx) put(action Action, r Record, value []byte) (Record, error) {
	if !t.writes {
		return Record{}, errReadOnly
	}
	if len(value) > MaxValue {
		return Record{}, fmt.Errorf("%s %q %q, %d bytes: %w", r.Kind, r.Group, r.Name, len(value), ErrTooLarge)
	}
	kept := r
	kept.Value = slices.Clone(value)
	t.written[r.Key] = &kept
	t.log(action, r)
	r.Value = slices.Clone(value)
	return r, nil
}

func (t *memoryTx) log(action Action, r Record) {
	t.revision++
	t.changes = append(t.changes, Change{Revision: t.revision, Time: time.Now(), Action: action, Key: r.Key, UID: r.UID, Version: r.Version})
}

func (t *memoryTx) Revision() (int64, error) { return t.revision, nil }

func (t *memoryTx) Changes(after int64, limit int) ([]Change, error) {
	if limit < 1 || limit > MaxList || after < 0 {
		return nil, fmt.Errorf("a limit of %d after revision %d: %w", limit, after, errArgument)
	}
	all := t.memory.changes
	if after < t.memory.revision-int64(len(all)) {
		return nil, fmt.Errorf("after revision %d: %w", after, ErrForgotten)
	}
	i, _ := slices.BinarySearchFunc(all, after+1, func(c Change, r int64) int { return cmp.Compare(c.Revision, r) })
	out := slices.Concat(all[i:], t.changes)
	// What this transaction has written comes behind, and may be before after too.
	j, _ := slices.BinarySearchFunc(out, after+1, func(c Change, r int64) int { return cmp.Compare(c.Revision, r) })
	return out[j:min(len(out), j+limit)], nil
}
