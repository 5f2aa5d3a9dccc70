package store_test

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-proxy/sluice/internal/store"
	"github.com/sluice-proxy/sluice/internal/storetest"
)

func openSQLite(t *testing.T, path string) *store.SQLite {
	t.Helper()
	s, err := store.OpenSQLite(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() }) // again, for some
	return s
}

func TestSQLite(t *testing.T) {
	const kept = 1000 // and not the number of production, which would take minutes to reach
	storetest.Run(t, kept, func(t *testing.T) store.Store {
		s := openSQLite(t, filepath.Join(t.TempDir(), "a b?%.db"))
		s.Keep(kept)
		return s
	})
}

// What was written is there when the file is opened again, and revisions go on.
func TestSQLiteAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	s := openSQLite(t, path)
	k := store.Key{Kind: "k", Name: "n"}
	write := func(f func(store.Tx) error) {
		t.Helper()
		if err := s.Update(t.Context(), f); err != nil {
			t.Fatal(err)
		}
	}
	var made store.Record
	write(func(tx store.Tx) (err error) { made, err = tx.Create(k, "u", []byte("v")); return err })
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", info.Mode(), err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openSQLite(t, path)
	if err := s.View(t.Context(), func(tx store.Tx) error {
		r, err := tx.Get(k)
		if string(r.Value) != "v" || r.UID != "u" || !r.Created.Equal(made.Created) {
			t.Errorf("%+v, was %+v", r, made)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	write(func(tx store.Tx) error {
		if err := tx.Delete(k, 1); err != nil {
			return err
		}
		if n, err := tx.Revision(); n != 2 || err != nil {
			t.Errorf("revision %d, %v", n, err)
		}
		return nil
	})
}

// Old events go, in the transaction that makes them too old; records stay.
func TestSQLiteForgets(t *testing.T) {
	const keep, extra = 20, 7
	s := openSQLite(t, filepath.Join(t.TempDir(), "s.db"))
	s.Keep(keep)
	if err := s.Update(t.Context(), func(tx store.Tx) error {
		r, err := tx.Create(store.Key{Kind: "k", Name: "n"}, "u", nil)
		for i := 1; i < keep+extra && err == nil; i++ {
			r, err = tx.Update(r.Key, r.Version, nil)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if err := s.View(t.Context(), func(tx store.Tx) error {
		if _, err := tx.Changes(extra-1, 1); !errors.Is(err, store.ErrForgotten) {
			t.Errorf("what is too old: %v", err)
		}
		c, err := tx.Changes(extra, 1)
		if err != nil || len(c) != 1 || c[0].Revision != extra+1 {
			t.Errorf("what is not: %+v, %v", c, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestSQLiteRefuses(t *testing.T) {
	dir := t.TempDir()
	for name, make := range map[string]func(path string) error{
		"no database": func(path string) error { return os.WriteFile(path, []byte("something else, and more of it"), 0o600) },
		"another database": func(path string) error {
			db, err := sql.Open("sqlite", path)
			if err != nil {
				return err
			}
			_, err = db.Exec("CREATE TABLE t (c)")
			return errors.Join(err, db.Close())
		},
		"a later version": func(path string) error {
			db, err := sql.Open("sqlite", path)
			if err != nil {
				return err
			}
			_, err = db.Exec("PRAGMA user_version = 2")
			return errors.Join(err, db.Close())
		},
		"a directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		path := filepath.Join(dir, name)
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		if s, err := store.OpenSQLite(t.Context(), path); err == nil {
			t.Errorf("%s is opened", name)
			_ = s.Close()
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}
