package store_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/store"
)

// crashEnv makes this binary the writer of TestSQLiteCrash, on the file that it names.
const crashEnv = "SLUICE_TEST_STORE_WRITER"

func TestMain(m *testing.M) {
	if path := os.Getenv(crashEnv); path != "" {
		if err := writeUntilKilled(path, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	goleak.VerifyTestMain(m)
}

var counterKey = store.Key{Kind: "counter", Name: "n"}

// writeUntilKilled does transactions of two writes each, and tells of each when it is done.
func writeUntilKilled(path string, told io.Writer) error {
	ctx := context.Background()
	s, err := store.OpenSQLite(ctx, path)
	if err != nil {
		return err
	}
	for {
		var n int
		if err := s.Update(ctx, func(tx store.Tx) (err error) { n, err = count(tx); return err }); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(told, "%04000d\n", n); err != nil { // so long that it cannot get far ahead of its reader
			return err
		}
	}
}

// count counts on: the counter and a record of its new value are one transaction.
func count(tx store.Tx) (n int, err error) {
	r, err := tx.Get(counterKey)
	switch {
	case errors.Is(err, store.ErrNotFound):
		n = 1
		_, err = tx.Create(counterKey, "u", []byte("1"))
	case err == nil:
		if n, err = strconv.Atoi(string(r.Value)); err == nil {
			n++
			_, err = tx.Update(counterKey, r.Version, []byte(strconv.Itoa(n)))
		}
	}
	if err == nil {
		_, err = tx.Create(store.Key{Kind: "value", Name: fmt.Sprintf("%08d", n)}, "u", make([]byte, 3000))
	}
	return n, err
}

// TestSQLiteCrash kills a process while it writes, again and again. What it has told of is there, nothing is half there, and
// the events are those of what is there.
func TestSQLiteCrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	told := 0
	for _, lines := range []int{1, 3, 17, 40, 2, 25} {
		told = killWriter(t, path, lines)
		checkCounted(t, path, told)
	}
	if told < 88 {
		t.Errorf("%d transactions", told)
	}
}

// killWriter lets a process write until it has told of so many transactions, and returns the last it told of.
func killWriter(t *testing.T, path string, lines int) (last int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(out)
	for i := 0; s.Scan(); i++ {
		if last, err = strconv.Atoi(s.Text()); err != nil {
			t.Fatal(err)
		}
		if i+1 == lines {
			_ = cmd.Process.Kill() // and read on: what was told before it died counts
		}
	}
	if err := cmd.Wait(); err == nil || last == 0 {
		t.Fatalf("the writer ended with %v after %d", err, last)
	}
	return last
}

func checkCounted(t *testing.T, path string, told int) {
	t.Helper()
	s := openSQLite(t, path)
	defer func() { _ = s.Close() }()
	if err := s.View(t.Context(), func(tx store.Tx) error {
		r, err := tx.Get(counterKey)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(r.Value))
		if err != nil || n < told || r.Version != int64(n) {
			t.Errorf("the counter is %q in version %d after %d was told, %v", r.Value, r.Version, told, err)
		}
		values, err := tx.List("value", "", "", store.MaxList)
		if err != nil || len(values) != n {
			t.Errorf("%d values of %d, %v", len(values), n, err)
		}
		changes, err := tx.Changes(0, store.MaxList)
		if revision, rerr := tx.Revision(); err != nil || rerr != nil || len(changes) != 2*n || revision != int64(2*n) {
			t.Errorf("%d events, revision %d, of %d transactions: %v, %v", len(changes), revision, n, err, rerr)
		}
		for i, c := range changes {
			if c.Revision != int64(i+1) {
				t.Errorf("event %d has revision %d", i, c.Revision)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
