package atelet_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/atelet"
)

func of(uid string) actor.Actor {
	return actor.Actor{Ref: demo(uid), Meta: actor.Meta{UID: uid}}
}

func demo(name string) actor.Ref { return actor.Ref{Atespace: "demo", Name: name} }

// The agents of several workers never give one user to two actors, and an actor keeps its user while it is on the machine.
func TestUsersAreOfOneActorEach(t *testing.T) {
	dir := t.TempDir()
	const n = 20
	var mu sync.Mutex
	users := map[uint32]string{}
	var wg sync.WaitGroup
	for w := range 2 {
		r, err := atelet.NewRoster(dir, atelet.Users{First: 5000, Last: 5000 + 2*n - 1})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for i := range n {
				uid := fmt.Sprintf("u%d-%d", w, i)
				user, thaw, err := r.Claim(of(uid), fmt.Sprint("w", w))
				mu.Lock()
				if err != nil || thaw || users[user] != "" || user < 5000 || user >= 5000+2*n {
					t.Errorf("%s: user %d (of %q), %v", uid, user, users[user], err)
				}
				users[user] = uid
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	r, err := atelet.NewRoster(dir, atelet.Users{First: 5000, Last: 5000 + 2*n - 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Claim(of("one-more"), "w"); !errors.Is(err, actor.ErrUnavailable) {
		t.Errorf("beyond the last user: %v", err)
	}
	before, _, _ := r.Claim(of("u0-3"), "w1")
	if err := r.Freeze("u0-3", true); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second try goes on from the same place
		if user, thaw, err := r.Claim(of("u0-3"), "w2"); err != nil || !thaw || user != before {
			t.Errorf("thawed with user %d, %v, %v, want %d", user, thaw, err, before)
		}
	}
	if err := r.Freeze("u0-3", false); err != nil {
		t.Fatal(err)
	}
	if _, thaw, err := r.Claim(of("u0-3"), "w2"); err != nil || !thaw { // what is frozen already must not be killed for a new one
		t.Errorf("half suspended: %v, %v", thaw, err)
	}
	if err := r.Forget("u0-3"); err != nil {
		t.Fatal(err)
	}
	if user, thaw, err := r.Claim(of("one-more"), "w"); err != nil || thaw || user != before {
		t.Errorf("the free user: %d, %v, want %d", user, err, before)
	}
}

// How an actor has ended counts until it is started again, also when it was handed on before.
func TestAnExitIsOfOneStart(t *testing.T) {
	r, err := atelet.NewRoster(t.TempDir(), atelet.Users{First: 5000, Last: 5001})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := r.Claim(of("a"), "w"); err != nil {
		t.Fatal(err)
	}
	e := r.Ended(t.Context(), of("a"), "w")
	if e.UID != "a" || e.Why != "exit status 1" || !e.Holds() {
		t.Errorf("%+v", e)
	}
	if _, _, err := r.Claim(of("a"), "w"); err != nil || e.Holds() {
		t.Errorf("it is started again, %v, and the exit holds", err)
	}
	if later := r.Ended(t.Context(), of("a"), "w"); !later.Holds() || e.Holds() {
		t.Error("it ended again, and not that counts")
	}
}

func TestRecordsThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	r, err := atelet.NewRoster(dir, atelet.Users{First: 5000, Last: 5001})
	if err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"", "../a", "a/b", "A", "a.json", strings.Repeat("a", 64)} {
		if _, _, err := r.Claim(of(uid), "w"); err == nil {
			t.Errorf("%q was taken", uid)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "a.json"), []byte(`{"UID":"b"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"a", "new"} { // no user is given away while it is not known whose they are
		if _, _, err := r.Claim(of(uid), "w"); !errors.Is(err, actor.ErrUnavailable) || !strings.Contains(err.Error(), "not whole") {
			t.Errorf("a broken record, for %s: %v", uid, err)
		}
	}
	for u, ok := range map[atelet.Users]bool{{1000, 1000}: true, {999, 1000}: false, {5, 4}: false, {2000, 1999}: false, {1000, 10999}: true, {1000, 11000}: false, {1 << 31, 1 << 31}: false} {
		if err := u.Check(); (err == nil) != ok {
			t.Errorf("%v: %v", u, err)
		}
	}
}

func TestQuantity(t *testing.T) {
	for text, want := range map[string]int64{
		"4194304": 4 << 20, "512Mi": 512 << 20, "2Gi": 2 << 30, "1Ti": 1 << 40, "5000k": 5e6, "5M": 5e6, "1G": 1e9, "1T": 1e12, "4096Ki": 4 << 20,
		"": 0, "Mi": 0, "4194303": 0, "-5Gi": 0, "1.5Gi": 0, "500m": 0, "1Pi": 0, "9999999999Gi": 0, "1 Gi": 0, "0x10Gi": 0,
	} {
		if got, err := atelet.Quantity(text); got != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
}

func FuzzQuantity(f *testing.F) {
	f.Add("512Mi")
	f.Add("99999999999999999999Ti")
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := atelet.Quantity(text); err == nil && (n < 4<<20 || n > 1<<62) {
			t.Errorf("%q is %d", text, n)
		}
	})
}

func TestHosts(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "[] <nil>",
		"# a\n\n203.0.113.7\ta b # c\r\n":   "[{a 203.0.113.7} {b 203.0.113.7}] <nil>",
		"2001:db8::1 six":                   "[{six 2001:db8::1}] <nil>",
		"a\n":                               ":1: must be",
		"203.0.113.7":                       ":1: must be",
		"# x\n203.0.113.256 a":              ":2: must be",
		"fe80::1%eth0 a":                    ":1: must be",
		strings.Repeat("1.2.3.4 a\n", 4097): "more than 4096",
	} {
		name := filepath.Join(t.TempDir(), "hosts")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := atelet.ReadHosts(name)
		if s := fmt.Sprint(got, " ", err); !strings.Contains(s, want) {
			t.Errorf("%.40q: %.200s, want %s", text, s, want)
		}
	}
}

func FuzzHosts(f *testing.F) {
	f.Add("203.0.113.7 a b # c\n")
	f.Fuzz(func(t *testing.T, text string) {
		name := filepath.Join(t.TempDir(), "hosts")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := atelet.ReadHosts(name)
		for _, h := range got {
			if err == nil && (!h.Address.IsValid() || h.Name == "" || strings.ContainsAny(h.Name, " \t\n#")) {
				t.Errorf("%q: %v", text, h)
			}
		}
	})
}
