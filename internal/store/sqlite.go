package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// sqliteSchema is the layout of docs/format/controlplane.md. Its number is the file's user_version.
const (
	sqliteSchema  = 1
	sqliteVersion = "PRAGMA user_version = 1" // it takes no parameter
)

const sqliteTables = `
CREATE TABLE records (
	kind TEXT NOT NULL, grp TEXT NOT NULL, name TEXT NOT NULL,
	uid TEXT NOT NULL, version INTEGER NOT NULL, created INTEGER NOT NULL, updated INTEGER NOT NULL,
	value BLOB NOT NULL,
	PRIMARY KEY (kind, grp, name)
) STRICT, WITHOUT ROWID;
CREATE TABLE events (
	revision INTEGER PRIMARY KEY,
	time INTEGER NOT NULL, action TEXT NOT NULL,
	kind TEXT NOT NULL, grp TEXT NOT NULL, name TEXT NOT NULL,
	uid TEXT NOT NULL, version INTEGER NOT NULL
) STRICT`

// ErrFormat is a file that is no store, or one of another version.
var ErrFormat = errors.New("not a store that this version can read")

// SQLite is a Store in one file. What Update has returned without error is on disk. Its events are kept to the last
// SQLiteEvents.
type SQLite struct {
	write *sql.DB // one connection: transactions that write come one after the other
	read  *sql.DB // as many as read at the same time
	keep  int64   // how many events
}

const (
	// SQLiteEvents is how many changes a SQLite keeps.
	SQLiteEvents = 100_000
	// sqliteReaders bounds the transactions that read at the same time.
	sqliteReaders = 4
)

// OpenSQLite opens a store, or makes one, in a file of its own (and two beside it, with -wal and -shm behind the name). It is
// readable by its owner only. Several processes may have it open.
func OpenSQLite(ctx context.Context, path string) (*SQLite, error) {
	// The driver would make it with the mode of the umask.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	s := &SQLite{keep: SQLiteEvents}
	if s.write, err = openSQLite(path, 1, "immediate", "_pragma=journal_mode(WAL)", "_pragma=synchronous(FULL)"); err != nil {
		return nil, err
	}
	if err = s.prepare(ctx); err == nil {
		s.read, err = openSQLite(path, sqliteReaders, "deferred", "_pragma=query_only(1)")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the store %s: %w", path, err), s.write.Close())
	}
	return s, nil
}

func openSQLite(path string, connections int, lock string, pragmas ...string) (*sql.DB, error) {
	name := (&url.URL{Scheme: "file", Opaque: url.PathEscape(path)}).String() + "?_pragma=busy_timeout(10000)&_txlock=" + lock
	for _, p := range pragmas {
		name += "&" + p
	}
	db, err := sql.Open("sqlite", name)
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
}

// prepare makes the tables of a new file, and refuses a file that is something else.
func (s *SQLite) prepare(ctx context.Context) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	var version, tables int
	if err := tx.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if version == sqliteSchema {
		return tx.Commit()
	}
	if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&tables); err != nil {
		return err
	}
	if version != 0 || tables != 0 {
		return fmt.Errorf("version %d: %w", version, ErrFormat)
	}
	for _, text := range []string{sqliteTables, sqliteVersion} {
		if _, err := tx.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// Update implements Store.
func (s *SQLite) Update(ctx context.Context, f func(Tx) error) error {
	return s.run(ctx, s.write, f)
}

// View implements Store.
func (s *SQLite) View(ctx context.Context, f func(Tx) error) error {
	return s.run(ctx, s.read, f)
}

// run runs one transaction. A panic of f rolls it back on its way.
func (s *SQLite) run(ctx context.Context, db *sql.DB, f func(Tx) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return causeOf(ctx, err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	t := &sqliteTx{ctx: ctx, tx: tx, writes: db == s.write}
	if err := f(t); err != nil {
		return err
	}
	if t.wrote {
		if err := t.forget(s.keep); err != nil {
			return causeOf(ctx, err)
		}
	}
	return causeOf(ctx, tx.Commit())
}

// causeOf puts the cause of a context's end in the place of what it has led to.
func causeOf(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Close implements Store.
func (s *SQLite) Close() error { return errors.Join(s.read.Close(), s.write.Close()) }
