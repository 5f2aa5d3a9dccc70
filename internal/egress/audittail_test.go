package egress_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-proxy/sluice/internal/egress"
)

func auditText(id, atespace, name, verdict string) string {
	return fmt.Sprintf(`{"time":"2026-01-02T03:04:05Z","id":%q,"leg":"connect","atespace":%q,"actor":%q,"verdict":%q,"reason":"allowed","bytes_up":0,"bytes_down":0,"duration_ms":0}`+"\n",
		id, atespace, name, verdict)
}

func TestTailAudit(t *testing.T) {
	one, two, three := auditText("1", "demo", "a", "allow"), auditText("2", "demo", "b", "deny"), auditText("3", "other", "a", "deny")
	long := `{"verdict":"allow","detail":"` + strings.Repeat("x", 70<<10) + "\"}\n"
	for _, tc := range []struct {
		name, text string
		o          egress.TailOptions
		want       string
		strange    int
	}{
		{"all", one + two + three, egress.TailOptions{Last: -1}, "1 2 3", 0},
		{"none of the past", one + two, egress.TailOptions{}, "", 0},
		{"the last", one + two + three, egress.TailOptions{Last: 1}, "3", 0},
		{"the last two", one + two + three, egress.TailOptions{Last: 2}, "2 3", 0},
		{"more than there are", one + two, egress.TailOptions{Last: 9}, "1 2", 0},
		{"the last of an actor", one + two + one + two, egress.TailOptions{Last: 1, Atespace: "demo", Actor: "a"}, "1", 0},
		{"an actor of an atespace", one + two + three, egress.TailOptions{Last: -1, Atespace: "other", Actor: "a"}, "3", 0},
		{"a verdict", one + two + three, egress.TailOptions{Last: -1, Verdict: "deny"}, "2 3", 0},
		{"lines of others", "not JSON\n" + one + "{}\n[1]\n\n" + two, egress.TailOptions{Last: -1}, "1 2", 4},
		{"one without its end", one + two[:40], egress.TailOptions{Last: -1}, "1", 1},
		{"a long one", one + long + two, egress.TailOptions{Last: -1}, "1 2", 1},
		{"nothing", "", egress.TailOptions{Last: -1}, "", 0},
	} {
		path := filepath.Join(t.TempDir(), "audit")
		if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		var ids []string
		strange, err := egress.TailAudit(t.Context(), path, tc.o, func(l egress.AuditLine) error {
			if !strings.Contains(tc.text, string(l.Text)+"\n") {
				t.Errorf("%s: no line is %q", tc.name, l.Text)
			}
			ids = append(ids, l.Record.ID)
			return nil
		})
		if err != nil || strange != tc.strange {
			t.Errorf("%s: %d lines are strange, want %d (%v)", tc.name, strange, tc.strange, err)
		}
		if diff := cmp.Diff(tc.want, strings.Join(ids, " ")); diff != "" {
			t.Errorf("%s:\n%s", tc.name, diff)
		}
	}
	if _, err := egress.TailAudit(t.Context(), filepath.Join(t.TempDir(), "none"), egress.TailOptions{Follow: true}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// Following goes on over lines in halves, a truncation, and a file that replaces this one, and ends with its context.
func TestTailAuditFollows(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit")
	add := func(flag int, text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_WRONLY|flag, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	add(os.O_CREATE, auditText("1", "demo", "a", "allow")+auditText("2", "demo", "a", "allow"))
	ctx, cancel := context.WithCancel(t.Context())
	seen, over := make(chan string), make(chan error, 1)
	go func() {
		_, err := egress.TailAudit(ctx, path, egress.TailOptions{Last: 1, Follow: true}, func(l egress.AuditLine) error {
			seen <- l.Record.ID
			return nil
		})
		over <- err
	}()
	want := func(id string) {
		t.Helper()
		select {
		case got := <-seen:
			if got != id {
				t.Fatalf("line %s, want %s", got, id)
			}
		case err := <-over:
			t.Fatalf("it has ended: %v", err)
		}
	}
	want("2")
	line := auditText("3", "demo", "a", "allow")
	add(os.O_APPEND, line[:50])
	add(os.O_APPEND, line[50:]+auditText("4", "demo", "a", "deny"))
	want("3")
	want("4")
	add(os.O_TRUNC, auditText("5", "demo", "a", "allow"))
	want("5")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	add(os.O_CREATE, auditText("6", "demo", "a", "allow"))
	want("6")
	cancel()
	if err := <-over; err != nil {
		t.Error(err)
	}
}
