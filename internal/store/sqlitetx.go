package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"
)

// sqliteTx is a transaction on a SQLite.
type sqliteTx struct {
	ctx    context.Context // a transaction is one call
	tx     *sql.Tx
	writes bool
	wrote  bool
}

const sqliteColumns = "SELECT kind, grp, name, uid, version, created, updated, value FROM records "

// scanRecord reads a row of sqliteColumns.
func scanRecord(scan func(...any) error) (r Record, err error) {
	var created, updated int64
	err = scan(&r.Kind, &r.Group, &r.Name, &r.UID, &r.Version, &created, &updated, &r.Value)
	r.Created, r.Updated = time.Unix(0, created), time.Unix(0, updated)
	return r, err
}

func (t *sqliteTx) Get(k Key) (Record, error) {
	row := t.tx.QueryRowContext(t.ctx, sqliteColumns+"WHERE kind = $1 AND grp = $2 AND name = $3", k.Kind, k.Group, k.Name)
	r, err := scanRecord(row.Scan)
	if errors.Is(err, sql.ErrNoRows) {
		return Record{}, fmt.Errorf("%s %q %q: %w", k.Kind, k.Group, k.Name, ErrNotFound)
	}
	return r, causeOf(t.ctx, err)
}

func (t *sqliteTx) List(kind, group, after string, limit int) ([]Record, error) {
	if limit < 1 || limit > MaxList {
		return nil, fmt.Errorf("a limit of %d: %w", limit, errArgument)
	}
	rows, err := t.tx.QueryContext(t.ctx, sqliteColumns+"WHERE kind = $1 AND grp = $2 AND name > $3 ORDER BY name LIMIT $4", kind, group, after, limit)
	if err != nil {
		return nil, causeOf(t.ctx, err)
	}
	defer func() { _ = rows.Close() }()
	var out []Record
	for rows.Next() {
		r, err := scanRecord(rows.Scan)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, causeOf(t.ctx, rows.Err())
}

func (t *sqliteTx) Create(k Key, uid string, value []byte) (Record, error) {
	if k.Kind == "" || k.Name == "" || uid == "" {
		return Record{}, fmt.Errorf("a record without a kind, a name or a UID: %w", errArgument)
	}
	switch _, err := t.Get(k); {
	case err == nil:
		return Record{}, fmt.Errorf("%s %q %q: %w", k.Kind, k.Group, k.Name, ErrExists)
	case !errors.Is(err, ErrNotFound):
		return Record{}, err
	}
	now := wallClock()
	r := Record{Key: k, UID: uid, Version: 1, Created: now, Updated: now}
	return t.put(Created, r, value, "INSERT INTO records (kind, grp, name, uid, version, created, updated, value) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
		k.Kind, k.Group, k.Name, uid, r.Version, now.UnixNano(), now.UnixNano())
}

func (t *sqliteTx) Update(k Key, version int64, value []byte) (Record, error) {
	r, err := t.at(k, version)
	if err != nil {
		return Record{}, err
	}
	r.Version++
	r.Updated = wallClock()
	return t.put(Updated, r, value, "UPDATE records SET version = $4, updated = $5, value = $6 WHERE kind = $1 AND grp = $2 AND name = $3",
		k.Kind, k.Group, k.Name, r.Version, r.Updated.UnixNano())
}

func (t *sqliteTx) Delete(k Key, version int64) error {
	r, err := t.at(k, version)
	if err != nil {
		return err
	}
	if err := t.exec("DELETE FROM records WHERE kind = $1 AND grp = $2 AND name = $3", k.Kind, k.Group, k.Name); err != nil {
		return err
	}
	return t.log(Deleted, r)
}

// at returns a record if it has a version.
func (t *sqliteTx) at(k Key, version int64) (Record, error) {
	r, err := t.Get(k)
	if err == nil && r.Version != version {
		err = fmt.Errorf("%s %q %q has version %d, not %d: %w", k.Kind, k.Group, k.Name, r.Version, version, ErrVersion)
	}
	return r, err
}

// put writes a record by a statement whose last argument is the value.
func (t *sqliteTx) put(action Action, r Record, value []byte, statement string, args ...any) (Record, error) {
	if len(value) > MaxValue {
		return Record{}, fmt.Errorf("%s %q %q, %d bytes: %w", r.Kind, r.Group, r.Name, len(value), ErrTooLarge)
	}
	r.Value = slices.Clone(value)
	if r.Value == nil {
		r.Value = []byte{} // nil would be NULL
	}
	if err := t.exec(statement, append(args, r.Value)...); err != nil {
		return Record{}, err
	}
	return r, t.log(action, r)
}

func (t *sqliteTx) log(action Action, r Record) error {
	return t.exec(`INSERT INTO events (revision, time, action, kind, grp, name, uid, version)
		SELECT coalesce(max(revision), 0) + 1, $1, $2, $3, $4, $5, $6, $7 FROM events`,
		time.Now().UnixNano(), string(action), r.Kind, r.Group, r.Name, r.UID, r.Version)
}

func (t *sqliteTx) exec(statement string, args ...any) error {
	if !t.writes {
		return errReadOnly
	}
	t.wrote = true
	_, err := t.tx.ExecContext(t.ctx, statement, args...)
	return causeOf(t.ctx, err)
}

// forget drops the oldest events. The last one stays, and so revisions never begin anew.
func (t *sqliteTx) forget(keep int64) error {
	return t.exec("DELETE FROM events WHERE revision <= (SELECT max(revision) FROM events) - $1", keep)
}

func (t *sqliteTx) Revision() (n int64, err error) {
	err = t.tx.QueryRowContext(t.ctx, "SELECT coalesce(max(revision), 0) FROM events").Scan(&n)
	return n, causeOf(t.ctx, err)
}

func (t *sqliteTx) Changes(after int64, limit int) ([]Change, error) {
	if limit < 1 || limit > MaxList || after < 0 {
		return nil, fmt.Errorf("a limit of %d after revision %d: %w", limit, after, errArgument)
	}
	var first int64 // 0 without any: nothing is forgotten then
	if err := t.tx.QueryRowContext(t.ctx, "SELECT coalesce(min(revision), 0) FROM events").Scan(&first); err != nil {
		return nil, causeOf(t.ctx, err)
	}
	if first > after+1 {
		return nil, fmt.Errorf("after revision %d: %w", after, ErrForgotten)
	}
	rows, err := t.tx.QueryContext(t.ctx, `SELECT revision, time, action, kind, grp, name, uid, version FROM events
		WHERE revision > $1 ORDER BY revision LIMIT $2`, after, limit)
	if err != nil {
		return nil, causeOf(t.ctx, err)
	}
	defer func() { _ = rows.Close() }()
	var out []Change
	for rows.Next() {
		var c Change
		var at int64
		if err := rows.Scan(&c.Revision, &at, &c.Action, &c.Key.Kind, &c.Key.Group, &c.Key.Name, &c.UID, &c.Version); err != nil {
			return nil, err
		}
		c.Time = time.Unix(0, at)
		out = append(out, c)
	}
	return out, causeOf(t.ctx, rows.Err())
}

// wallClock is now as it comes back from a column.
func wallClock() time.Time { return time.Unix(0, time.Now().UnixNano()) }
