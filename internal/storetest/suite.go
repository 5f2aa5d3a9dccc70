// Package storetest is what every store.Store has to do, as tests. Run them over each kind of store. It is imported by
// tests only, and owns nothing.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-proxy/sluice/internal/store"
)

// Run tests stores that open makes, each of them empty; the suite closes them. They keep so many changes, or all.
func Run(t *testing.T, kept int, open func(t *testing.T) store.Store) {
	for name, test := range map[string]func(t *testing.T, s store.Store){
		"a record's life":          recordLife,
		"errors":                   recordErrors,
		"values are copies":        copies,
		"an error undoes":          rollback,
		"a panic undoes":           panics,
		"reading only":             readOnly,
		"own writes are read":      ownWrites,
		"lists and pages":          lists,
		"changes":                  changes,
		"old changes":              func(t *testing.T, s store.Store) { oldChanges(t, s, kept) },
		"no update is lost":        contention,
		"readers see whole writes": isolation,
		"after its end":            closing,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			defer func() { _ = s.Close() }()
			test(t, s)
		})
	}
}

// update runs a transaction that must succeed.
func update(t *testing.T, s store.Store, f func(tx store.Tx) error) {
	t.Helper()
	if err := s.Update(t.Context(), f); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, s store.Store, k store.Key) (r store.Record, err error) {
	t.Helper()
	viewErr := s.View(t.Context(), func(tx store.Tx) error {
		r, err = tx.Get(k)
		return nil
	})
	if viewErr != nil {
		t.Fatal(viewErr)
	}
	return r, err
}

var key = store.Key{Kind: "actor", Group: "demo", Name: "a"}

func recordLife(t *testing.T, s store.Store) {
	var made, changed store.Record
	update(t, s, func(tx store.Tx) (err error) {
		made, err = tx.Create(key, "uid-1", []byte("one"))
		return err
	})
	if r, err := get(t, s, key); err != nil || r.UID != "uid-1" || r.Version != 1 || string(r.Value) != "one" || r.Key != key || !r.Created.Equal(r.Updated) || !r.Created.Equal(made.Created) || r.Created.IsZero() {
		t.Errorf("created: %+v, %v", r, err)
	}
	update(t, s, func(tx store.Tx) (err error) {
		changed, err = tx.Update(key, 1, []byte("two"))
		return err
	})
	if r, err := get(t, s, key); err != nil || r.UID != "uid-1" || r.Version != 2 || changed.Version != 2 || string(r.Value) != "two" || !r.Created.Equal(made.Created) || r.Updated.Before(made.Updated) {
		t.Errorf("updated: %+v, %v", r, err)
	}
	update(t, s, func(tx store.Tx) error { return tx.Delete(key, 2) })
	if r, err := get(t, s, key); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("deleted: %+v, %v", r, err)
	}
	update(t, s, func(tx store.Tx) error {
		_, err := tx.Create(key, "uid-2", nil)
		return err
	})
	if r, err := get(t, s, key); err != nil || r.UID != "uid-2" || r.Version != 1 || len(r.Value) != 0 {
		t.Errorf("created again: %+v, %v", r, err)
	}
}

func recordErrors(t *testing.T, s store.Store) {
	update(t, s, func(tx store.Tx) error {
		_, err := tx.Create(key, "uid-1", []byte("one"))
		return err
	})
	other := store.Key{Kind: "actor", Group: "demo", Name: "b"}
	large := make([]byte, store.MaxValue+1)
	for name, tc := range map[string]struct {
		f    func(tx store.Tx) error
		want error // nil: some error
	}{
		"create what is there":            {func(tx store.Tx) error { _, err := tx.Create(key, "u", nil); return err }, store.ErrExists},
		"get what is not":                 {func(tx store.Tx) error { _, err := tx.Get(other); return err }, store.ErrNotFound},
		"update what is not":              {func(tx store.Tx) error { _, err := tx.Update(other, 1, nil); return err }, store.ErrNotFound},
		"delete what is not":              {func(tx store.Tx) error { return tx.Delete(other, 1) }, store.ErrNotFound},
		"update an old version":           {func(tx store.Tx) error { _, err := tx.Update(key, 0, nil); return err }, store.ErrVersion},
		"update a version to be":          {func(tx store.Tx) error { _, err := tx.Update(key, 2, nil); return err }, store.ErrVersion},
		"delete another version":          {func(tx store.Tx) error { return tx.Delete(key, 2) }, store.ErrVersion},
		"create too much":                 {func(tx store.Tx) error { _, err := tx.Create(other, "u", large); return err }, store.ErrTooLarge},
		"update to too much":              {func(tx store.Tx) error { _, err := tx.Update(key, 1, large); return err }, store.ErrTooLarge},
		"create without a name":           {func(tx store.Tx) error { _, err := tx.Create(store.Key{Kind: "actor"}, "u", nil); return err }, nil},
		"create without a kind":           {func(tx store.Tx) error { _, err := tx.Create(store.Key{Name: "a"}, "u", nil); return err }, nil},
		"create without a UID":            {func(tx store.Tx) error { _, err := tx.Create(other, "", nil); return err }, nil},
		"list nothing":                    {func(tx store.Tx) error { _, err := tx.List("actor", "demo", "", 0); return err }, nil},
		"list too much":                   {func(tx store.Tx) error { _, err := tx.List("actor", "demo", "", store.MaxList+1); return err }, nil},
		"changes after less than nothing": {func(tx store.Tx) error { _, err := tx.Changes(-1, 1); return err }, nil},
	} {
		if err := s.Update(t.Context(), tc.f); err == nil || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	if r, err := get(t, s, key); err != nil || r.Version != 1 || string(r.Value) != "one" {
		t.Errorf("after the errors: %+v, %v", r, err)
	}
	update(t, s, func(tx store.Tx) error { // the bound itself is allowed
		_, err := tx.Create(other, "u", large[:store.MaxValue])
		return err
	})
}

func copies(t *testing.T, s store.Store) {
	value := []byte("one")
	update(t, s, func(tx store.Tx) error {
		r, err := tx.Create(key, "u", value)
		copy(value, "xxx")
		copy(r.Value, "yyy")
		return err
	})
	r, _ := get(t, s, key)
	copy(r.Value, "zzz")
	if r, err := get(t, s, key); err != nil || string(r.Value) != "one" {
		t.Errorf("the value is %q, %v", r.Value, err)
	}
}

func rollback(t *testing.T, s store.Store) {
	update(t, s, func(tx store.Tx) error {
		_, err := tx.Create(key, "u", []byte("one"))
		return err
	})
	wrong := errors.New("no")
	second := store.Key{Kind: "actor", Group: "demo", Name: "b"}
	err := s.Update(t.Context(), func(tx store.Tx) error {
		if _, err := tx.Create(second, "u", nil); err != nil {
			return err
		}
		if _, err := tx.Update(key, 1, []byte("two")); err != nil {
			return err
		}
		return fmt.Errorf("wrapped: %w", wrong)
	})
	if !errors.Is(err, wrong) {
		t.Errorf("the error is %v", err)
	}
	untouched(t, s, second)
}

// untouched looks for what a transaction that was undone would have left.
func untouched(t *testing.T, s store.Store, second store.Key) {
	t.Helper()
	if r, err := get(t, s, key); err != nil || r.Version != 1 || string(r.Value) != "one" {
		t.Errorf("the record: %+v, %v", r, err)
	}
	if r, err := get(t, s, second); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the other record: %+v, %v", r, err)
	}
	update(t, s, func(tx store.Tx) error {
		all, err := tx.Changes(0, 10)
		if n, _ := tx.Revision(); err != nil || len(all) != 1 || n != 1 {
			t.Errorf("changes %+v, revision %d, %v", all, n, err)
		}
		return nil
	})
}

func panics(t *testing.T, s store.Store) {
	update(t, s, func(tx store.Tx) error {
		_, err := tx.Create(key, "u", []byte("one"))
		return err
	})
	second := store.Key{Kind: "actor", Group: "demo", Name: "b"}
	func() {
		defer func() {
			if p := recover(); p != "no" {
				t.Errorf("the panic is %v", p)
			}
		}()
		_ = s.Update(t.Context(), func(tx store.Tx) error {
			_, _ = tx.Create(second, "u", nil)
			_, _ = tx.Update(key, 1, nil)
			panic("no")
		})
	}()
	untouched(t, s, second)
}

func readOnly(t *testing.T, s store.Store) {
	update(t, s, func(tx store.Tx) error {
		_, err := tx.Create(key, "u", nil)
		return err
	})
	for name, f := range map[string]func(tx store.Tx) error{
		"create": func(tx store.Tx) error {
			_, err := tx.Create(store.Key{Kind: "actor", Name: "b"}, "u", nil)
			return err
		},
		"update": func(tx store.Tx) error { _, err := tx.Update(key, 1, nil); return err },
		"delete": func(tx store.Tx) error { return tx.Delete(key, 1) },
	} {
		if err := s.View(t.Context(), f); err == nil {
			t.Errorf("%s is possible", name)
		}
	}
	if r, err := get(t, s, key); err != nil || r.Version != 1 {
		t.Errorf("afterwards: %+v, %v", r, err)
	}
}

func ownWrites(t *testing.T, s store.Store) {
	update(t, s, func(tx store.Tx) error {
		if _, err := tx.Create(key, "u", []byte("one")); err != nil {
			return err
		}
		if _, err := tx.Update(key, 1, []byte("two")); err != nil {
			return err
		}
		r, err := tx.Get(key)
		if err != nil || r.Version != 2 || string(r.Value) != "two" {
			t.Errorf("%+v, %v", r, err)
		}
		if l, err := tx.List("actor", "demo", "", 10); err != nil || len(l) != 1 || string(l[0].Value) != "two" {
			t.Errorf("%+v, %v", l, err)
		}
		if c, err := tx.Changes(1, 10); err != nil || len(c) != 1 || c[0].Action != store.Updated {
			t.Errorf("%+v, %v", c, err)
		}
		if err := tx.Delete(key, 2); err != nil {
			return err
		}
		if r, err := tx.Get(key); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("%+v, %v", r, err)
		}
		if l, err := tx.List("actor", "demo", "", 10); err != nil || len(l) != 0 {
			t.Errorf("%+v, %v", l, err)
		}
		return nil
	})
}

func lists(t *testing.T, s store.Store) {
	want := []string{"a", "a-b", "a0", "b", "c", "z"}
	update(t, s, func(tx store.Tx) error {
		for _, name := range []string{"z", "a0", "b", "a", "c", "a-b"} {
			for _, k := range []store.Key{
				{Kind: "actor", Group: "demo", Name: name},
				{Kind: "actor", Group: "other", Name: name + "x"},
				{Kind: "worker", Group: "demo", Name: name + "y"},
				{Kind: "worker", Name: name},
			} {
				if _, err := tx.Create(k, "u", []byte(k.Kind+k.Group+k.Name)); err != nil {
					return err
				}
			}
		}
		return nil
	})
	for _, limit := range []int{1, 2, 4, 6, 7, store.MaxList} {
		var got []string
		for after := ""; ; {
			var page []store.Record
			if err := s.View(t.Context(), func(tx store.Tx) (err error) {
				page, err = tx.List("actor", "demo", after, limit)
				return err
			}); err != nil {
				t.Fatal(err)
			}
			if len(page) == 0 {
				break
			}
			for _, r := range page {
				if string(r.Value) != "actordemo"+r.Name || r.Kind != "actor" || r.Group != "demo" {
					t.Errorf("listed %+v", r)
				}
				got, after = append(got, r.Name), r.Name
			}
			if len(page) > limit {
				t.Errorf("%d records with a limit of %d", len(page), limit)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("in pages of %d: %v, want %v", limit, got, want)
		}
	}
	if err := s.View(t.Context(), func(tx store.Tx) error {
		if all, err := tx.List("worker", "", "b", 10); err != nil || len(all) != 2 || all[0].Name != "c" {
			t.Errorf("without a group: %+v, %v", all, err)
		}
		none, err := tx.List("actor", "nobody", "", 10)
		if len(none) != 0 {
			t.Errorf("in a group that is not there: %+v", none)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

func changes(t *testing.T, s store.Store) {
	update(t, s, func(tx store.Tx) error {
		if n, err := tx.Revision(); n != 0 || err != nil {
			t.Errorf("at first the revision is %d, %v", n, err)
		}
		_, err := tx.Create(key, "u1", nil)
		return err
	})
	update(t, s, func(tx store.Tx) error {
		if _, err := tx.Update(key, 1, nil); err != nil {
			return err
		}
		_, err := tx.Create(store.Key{Kind: "worker", Name: "w"}, "u2", nil)
		if n, rerr := tx.Revision(); n != 3 || rerr != nil {
			t.Errorf("within the transaction the revision is %d, %v", n, rerr)
		}
		return err
	})
	update(t, s, func(tx store.Tx) error { return tx.Delete(key, 2) })
	want := []string{"1 created actor/demo/a u1 1", "2 updated actor/demo/a u1 2", "3 created worker//w u2 1", "4 deleted actor/demo/a u1 2"}
	for after := range int64(6) {
		var got []string
		if err := s.View(t.Context(), func(tx store.Tx) error {
			all, err := tx.Changes(after, 3)
			for _, c := range all {
				got = append(got, fmt.Sprint(c.Revision, " ", c.Action, " ", strings.Join([]string{c.Key.Kind, c.Key.Group, c.Key.Name}, "/"), " ", c.UID, " ", c.Version))
				if c.Time.IsZero() {
					t.Errorf("no time: %+v", c)
				}
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		from := min(int(after), 4)
		if !slices.Equal(got, want[from:min(from+3, 4)]) {
			t.Errorf("after %d: %v", after, got)
		}
	}
}

// A store may forget old changes, and must say so when it is asked for them.
func oldChanges(t *testing.T, s store.Store, kept int) {
	const each = 200
	rounds := kept*6/5/each + 1
	for i := range rounds {
		update(t, s, func(tx store.Tx) error {
			for j := range each {
				if _, err := tx.Create(store.Key{Kind: "k", Name: fmt.Sprintf("%d-%d", i, j)}, "u", nil); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := s.View(t.Context(), func(tx store.Tx) error {
		all := int64(rounds * each)
		last, err := tx.Changes(all-1, 10)
		if err != nil || len(last) != 1 || last[0].Revision != all {
			t.Errorf("the last change: %+v, %v", last, err)
		}
		first, err := tx.Changes(0, 10)
		if err == nil && (len(first) != 10 || first[0].Revision != 1) || err != nil && !errors.Is(err, store.ErrForgotten) {
			t.Errorf("the first changes: %+v, %v", first, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func contention(t *testing.T, s store.Store) {
	update(t, s, func(tx store.Tx) error {
		_, err := tx.Create(key, "u", nil)
		return err
	})
	var writers sync.WaitGroup
	for range 16 {
		writers.Go(func() {
			for range 25 {
				if err := s.Update(t.Context(), func(tx store.Tx) error {
					r, err := tx.Get(key)
					if err != nil {
						return err
					}
					_, err = tx.Update(key, r.Version, append(r.Value, 'x'))
					return err
				}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	if r, err := get(t, s, key); err != nil || len(r.Value) != 400 || r.Version != 401 {
		t.Errorf("%d of 400 writes, version %d, %v", len(r.Value), r.Version, err)
	}
}

func isolation(t *testing.T, s store.Store) {
	second := store.Key{Kind: "actor", Group: "demo", Name: "b"}
	update(t, s, func(tx store.Tx) error {
		_, err := tx.Create(key, "u", nil)
		_, err2 := tx.Create(second, "u", nil)
		return errors.Join(err, err2)
	})
	ctx, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for v := int64(1); ctx.Err() == nil; v++ {
			_ = s.Update(t.Context(), func(tx store.Tx) error {
				_, err := tx.Update(key, v, nil)
				_, err2 := tx.Update(second, v, nil)
				return errors.Join(err, err2)
			})
		}
	})
	for range 200 {
		if err := s.View(t.Context(), func(tx store.Tx) error {
			a, err := tx.Get(key)
			b, err2 := tx.Get(second)
			if a.Version != b.Version {
				t.Errorf("versions %d and %d of two records that are written together", a.Version, b.Version)
			}
			return errors.Join(err, err2)
		}); err != nil {
			t.Error(err)
		}
	}
	stop()
	writer.Wait()
}

func closing(t *testing.T, s store.Store) {
	ctx, stop := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	stop(gone)
	for name, run := range map[string]func(context.Context, func(store.Tx) error) error{"update": s.Update, "view": s.View} {
		called := false
		if err := run(ctx, func(store.Tx) error { called = true; return nil }); !errors.Is(err, gone) || called {
			t.Errorf("%s for who has left: %v, called %v", name, err, called)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for name, run := range map[string]func(context.Context, func(store.Tx) error) error{"update": s.Update, "view": s.View} {
		if err := run(t.Context(), func(store.Tx) error { return nil }); err == nil {
			t.Errorf("%s after the end", name)
		}
	}
}
