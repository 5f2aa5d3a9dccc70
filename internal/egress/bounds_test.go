package egress_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/egress"
)

// minter counts, and may wait.
type minter struct {
	*cert.Authority
	asked atomic.Int64
	hold  chan struct{} // nil: it does not wait
	fail  atomic.Bool
}

func newMinter(t *testing.T) *minter {
	t.Helper()
	a, err := cert.OpenAuthority(cert.AuthorityOptions{Name: "mitm", MinSigningAge: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	return &minter{Authority: a}
}

func (m *minter) Mint(ctx context.Context, request []byte, name string, addr netip.Addr) ([][]byte, error) {
	m.asked.Add(1)
	if m.hold != nil {
		<-m.hold
	}
	if m.fail.Load() {
		return nil, errors.New("cannot")
	}
	return m.Authority.Mint(ctx, request, name, addr)
}

// Of those who ask for a name at a time one has it minted; so many names are minted at a time, and so many are kept.
func TestLeaves(t *testing.T) {
	m := newMinter(t)
	m.hold = make(chan struct{})
	l, err := egress.NewLeaves(m)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 10 * egress.MaxMinting {
		all.Go(func() {
			if _, err := egress.Get(l, t.Context(), name(t, fmt.Sprintf("n%d.test", i%egress.MaxMinting))); err != nil {
				t.Error(err)
			}
		})
	}
	for m.asked.Load() < egress.MaxMinting {
		time.Sleep(time.Millisecond) // looking again: they are all on their way
	}
	if _, err := egress.Get(l, t.Context(), name(t, "more.test")); !errors.Is(err, egress.ErrLeaves) {
		t.Errorf("one more at a time: %v", err)
	}
	close(m.hold)
	all.Wait()
	if n := m.asked.Load(); n != egress.MaxMinting {
		t.Errorf("minted %d for %d names", n, egress.MaxMinting)
	}
	for i := range egress.MaxLeaves + 3 {
		c, err := egress.Get(l, t.Context(), name(t, fmt.Sprintf("n%d.test", i)))
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(c.Certificate[0])
		if err != nil || leaf.VerifyHostname(fmt.Sprintf("n%d.test", i)) != nil {
			t.Fatalf("a leaf for %v, %v", leaf.DNSNames, err)
		}
	}
	if l.Kept() != egress.MaxLeaves {
		t.Errorf("%d are kept", l.Kept())
	}
	m.fail.Store(true)
	before := m.asked.Load()
	for range 2 { // a failure is not kept
		if _, err := egress.Get(l, t.Context(), name(t, "failing.test")); err == nil || strings.Contains(err.Error(), "key") {
			t.Errorf("a minter that cannot: %v", err)
		}
	}
	if m.asked.Load() != before+2 {
		t.Errorf("asked %d times", m.asked.Load()-before)
	}
}

func TestDialRate(t *testing.T) {
	var b egress.Bucket
	now := time.Now()
	took := func() (n int) {
		for b.Take(now) {
			n++
		}
		return n
	}
	if n := took(); n != egress.DialBurst {
		t.Errorf("at once: %d", n)
	}
	now = now.Add(time.Second)
	if n := took(); n != egress.DialRate {
		t.Errorf("after a second: %d", n)
	}
	now = now.Add(time.Hour)
	if n := took(); n != egress.DialBurst {
		t.Errorf("after an hour: %d", n)
	}
}

// A line that nobody takes is lost and counted; the others are whole and in their order.
func TestAuditQueue(t *testing.T) {
	var out bytes.Buffer
	a := egress.NewAudit(&out, slog.New(slog.DiscardHandler))
	for i := range egress.AuditQueue + 5 {
		a.Write(&egress.Record{ID: fmt.Sprint(i), Path: "/\n\"\x00\xff\u009b\u202e"})
	}
	if a.Lost() != 5 {
		t.Errorf("lost %d", a.Lost())
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	a.Run(ctx) // what was taken before is written
	n := 0
	for line := range bytes.Lines(out.Bytes()) {
		var r egress.Record
		if err := json.Unmarshal(line, &r); err != nil || r.ID != fmt.Sprint(n) {
			t.Fatalf("line %d: %q, %v", n, line, err)
		}
		if r.Path != "/\n\"\x00\ufffd\u009b\u202e" || bytes.ContainsAny(line, "\u009b\u202e\x7f") {
			t.Fatalf("line %d: %q, %q", n, line, r.Path)
		}
		n++
	}
	if n != egress.AuditQueue {
		t.Errorf("%d lines", n)
	}
}

// fullNow and then is a disk that takes part of a line, and nothing for a while.
type fullNow struct {
	bytes.Buffer
	writes int
}

func (w *fullNow) Write(b []byte) (int, error) {
	switch w.writes++; w.writes {
	case 2:
		n, _ := w.Buffer.Write(b[:len(b)/2])
		return n, syscall.ENOSPC
	case 3:
		return 0, syscall.ENOSPC
	}
	return w.Buffer.Write(b)
}

// A line of which the disk has taken a part costs itself and no other one; that some were lost is said once, and that there
// were lines for which the queue had no room before is no reason to be silent.
func TestAuditTornLine(t *testing.T) {
	var out fullNow
	var said bytes.Buffer
	a := egress.NewAudit(&out, slog.New(slog.NewTextHandler(&said, nil)))
	for i := range egress.AuditQueue + 1 { // one too many
		a.Write(&egress.Record{ID: fmt.Sprint(i)})
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	a.Run(ctx)
	whole := 0
	for line := range bytes.Lines(out.Bytes()) {
		if json.Unmarshal(line, &egress.Record{}) == nil {
			whole++
		}
	}
	if want := egress.AuditQueue - 2; whole != want || a.Lost() != 3 {
		t.Errorf("%d lines are whole, want %d; %d are counted as lost", whole, want, a.Lost())
	}
	if n := bytes.Count(said.Bytes(), []byte("no space left")); n != 1 {
		t.Errorf("it is said %d times: %s", n, said.Bytes())
	}
}

func TestHosts(t *testing.T) {
	for text, want := range map[string]int{
		"":                                0,
		"# nothing\n\n":                   0,
		"1.2.3.4 a.test B.test. #":        2,
		"1.2.3.4 a.test\n::1\ta.test\r\n": 1,
		"a.test 1.2.3.4":                  -1,
		"1.2.3.4 *.test":                  -1,
		"fe80::1%eth0 a.test":             -1,
		"1.2.3.4 1.2.3.4":                 -1,
	} {
		names, err := egress.ParseHosts([]byte(text))
		if (err == nil) != (want >= 0) || err == nil && len(names) != want {
			t.Errorf("%q: %v, %v", text, names, err)
		}
	}
}

func FuzzHostsFile(f *testing.F) {
	f.Add([]byte("1.2.3.4 a.test b.test # c\n::1 a.test\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		names, err := egress.ParseHosts(text)
		if err != nil {
			return
		}
		for n, addrs := range names {
			if h, err := egress.ParseName(n); err != nil || h.Name() != n || len(addrs) == 0 {
				t.Fatalf("%q at %v: %v", n, addrs, err)
			}
		}
	})
}

// A call that can be read is judged without a panic, and never allowed to another host than the URL's.
func FuzzCall(f *testing.F) {
	for _, s := range []string{"http://a.test/", "https://a.test:8443/x", "https://[::1]/", "http://u@a.test", "https://A.test.", "http://0x7f.1/"} {
		f.Add(s)
	}
	rules, err := egress.Compile(policy(http(everywhere, "*"), https(everywhere, "*")), "demo")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := egress.ParseCall("GET", s)
		if err != nil {
			return
		}
		steps := egress.Explain(egress.Verdict{Reason: egress.Allowed}, egress.Standing{Rules: rules, Reason: egress.Allowed}, c)
		last := steps[len(steps)-1]
		h, err := egress.ParseAuthority(c.Authority)
		if last.OK() != (err == nil && (!c.Secure || h.Name() != "")) || last.OK() && last.Host != h {
			t.Fatalf("%q is %+v, and its host %v, %v", s, last, h, err)
		}
	})
}
