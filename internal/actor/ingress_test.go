package actor_test

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
	"github.com/sluice-proxy/sluice/internal/tunnel"
)

var a1 = actor.Ref{Atespace: "demo", Name: "a1"}

// The texts are a contract: clients see them.
func TestAnswers(t *testing.T) {
	control := func(c actor.Code, text string) error { return actor.Refuse(c, "%s", text) }
	for _, tc := range []struct {
		name   string
		got    *exchange.Error
		status int
		text   string
		after  int
		code   exchange.Code
	}{
		{"lot full", actor.Refused(a1, service.Stay{Landing: service.Rejected}, service.ErrLotFull), 503, `actor "demo/a1" unavailable: router at capacity`, 1, "actor_parking_full"},
		{"closed", actor.Refused(a1, service.Stay{Landing: service.Rejected}, service.ErrLotClosed), 503, "actor demo/a1 unavailable", 1, "draining"},
		{"not there", actor.Refused(a1, service.Stay{}, control(actor.NotFound, "secret")), 404, "actor demo/a1 not found", 0, "actor_not_found"},
		{"no room", actor.Refused(a1, service.Stay{Landing: service.Exhausted}, control(actor.ResourceExhausted, "no free workers available")), 503, "actor demo/a1 unavailable: no free workers available", 1, "actor_unavailable"},
		{"another state", actor.Refused(a1, service.Stay{Landing: service.Exhausted}, control(actor.FailedPrecondition, "is\nCRASHED \x00é")), 503, "actor demo/a1 unavailable: is CRASHED   ", 1, "actor_unavailable"},
		{"another operation", actor.Refused(a1, service.Stay{Landing: service.Exhausted}, control(actor.Aborted, "locked")), 503, "actor demo/a1 unavailable: locked", 1, "actor_unavailable"},
		{"control plane gone", actor.Refused(a1, service.Stay{Landing: service.Exhausted}, control(actor.Unavailable, "dial tcp 10.0.0.1")), 503, "actor demo/a1 unavailable", 1, "actor_unavailable"},
		{"late", actor.Refused(a1, service.Stay{Landing: service.TimedOut}, context.DeadlineExceeded), 504, "actor demo/a1 request timed out", 0, "actor_timeout"},
		{"late there", actor.Refused(a1, service.Stay{}, control(actor.DeadlineExceeded, "x")), 504, "actor demo/a1 request timed out", 0, "actor_timeout"},
		{"we may not", actor.Refused(a1, service.Stay{}, control(actor.PermissionDenied, "x")), 403, "actor demo/a1 access denied", 0, "actor_access_denied"},
		{"we are nobody", actor.Refused(a1, service.Stay{}, control(actor.Unauthenticated, "x")), 401, "actor demo/a1 authentication required", 0, "actor_authentication_required"},
		{"the client left", actor.Refused(a1, service.Stay{Landing: service.Left}, exchange.ErrDeparted), 408, "request for actor demo/a1 canceled by client", 0, "client_gone"},
		{"the client's deadline", actor.Refused(a1, service.Stay{Landing: service.Left}, exchange.ErrExpired), 504, "actor demo/a1 request timed out", 0, "deadline_exceeded"},
		{"lost", actor.Refused(a1, service.Stay{}, control(actor.DataLoss, "node n1 is gone")), 410, "actor demo/a1 unrecoverable: node n1 is gone", 0, "actor_unrecoverable"},
		{"nowhere", actor.Refused(a1, service.Stay{}, fmt.Errorf("x: %w", actor.ErrAnswer)), 500, "actor demo/a1 routing failed", 0, "actor_routing_failed"},
		{"anything else", actor.Refused(a1, service.Stay{}, control(actor.Internal, "10.0.0.1")), 500, "error resuming actor demo/a1", 0, "actor_resume_failed"},
		{"no refusal", actor.Refused(a1, service.Stay{}, errors.New("x")), 500, "error resuming actor demo/a1", 0, "actor_resume_failed"},
		{"run out", actor.RunOut(a1, errors.New("10.0.0.1")), 503, "actor demo/a1 unavailable", 1, "actor_unavailable"},
		{"closed port", actor.Unreached(a1, &tunnel.Refusal{Status: 502}), 502, "bad gateway", 0, "connect_failed"},
		{"full worker", actor.Unreached(a1, &tunnel.Refusal{Status: 503}), 503, "actor demo/a1 unavailable", 1, "backend_busy"},
		{"full pool", actor.Unreached(a1, tunnel.ErrFull), 503, "actor demo/a1 unavailable", 1, "backend_busy"},
		{"not understood", actor.Unreached(a1, &tunnel.Refusal{Status: 400}), 500, "actor demo/a1 routing failed", 0, "actor_routing_failed"},
	} {
		if e := tc.got; e.Status != tc.status || e.Public != tc.text || e.RetryAfter != tc.after || e.Code != tc.code {
			t.Errorf("%s: %d %q %d %s", tc.name, e.Status, e.Public, e.RetryAfter, e.Code)
		}
	}
	long := actor.Refused(a1, service.Stay{}, control(actor.Aborted, strings.Repeat("x", 5000)))
	if n := len(long.Public); n > 600 {
		t.Errorf("a text of %d bytes", n)
	}
}

func TestRetried(t *testing.T) {
	for code := range actor.Code(20) {
		want := map[actor.Code]service.Retry{
			actor.Aborted: service.RetryConflict, actor.ResourceExhausted: service.RetryParked,
			actor.FailedPrecondition: service.RetryParked, actor.Unavailable: service.RetryParked,
		}[code]
		if got := actor.RetryOf(fmt.Errorf("x: %w", actor.Refuse(code, "x"))); got != want {
			t.Errorf("%s: %v", code, got)
		}
	}
	stale := []tunnel.Field{{Name: "X-Ate-Assignment-Stale", Value: "true"}}
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{&tunnel.Refusal{Status: 421, Fields: stale}, true},
		{&tunnel.Refusal{Status: 421}, false}, // whoever says so is no worker
		{&tunnel.Refusal{Status: 502, Fields: stale}, false},
		{&tunnel.Refusal{Status: 400}, false},
		{tunnel.ErrFull, false},
		{tunnel.ErrClosed, true},
		{conn.ErrConnect, true},
		{conn.ErrTLS, true},
		{errors.New("the connection ended"), true},
	} {
		if got := actor.Passes(fmt.Errorf("x: %w", tc.err)); got != tc.want {
			t.Errorf("%v: %v", tc.err, got)
		}
	}
}

// A place is forgotten after a while, or when it was found to be wrong; never a newer one for an older one's fault.
func TestAssignments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := actor.NewAssignments(5 * time.Second)
		at := func(uid string) actor.Actor { return actor.Actor{Ref: a1, Meta: actor.Meta{UID: uid}} }
		if _, ok := c.Get(a1); ok {
			t.Error("something is known before anything was said")
		}
		first := c.Put(at("1"), true)
		if got, ok := c.Get(a1); !ok || got.UID() != "1" || got.Resumed() || !first.Resumed() {
			t.Errorf("%v %v", got, ok)
		}
		second := c.Put(at("2"), false)
		c.Forget(first)
		if got, ok := c.Get(a1); !ok || got.UID() != "2" {
			t.Error("a newer place was forgotten")
		}
		time.Sleep(5*time.Second - 1)
		if _, ok := c.Get(a1); !ok {
			t.Error("forgotten too early")
		}
		time.Sleep(time.Nanosecond)
		if _, ok := c.Get(a1); ok || c.Len() != 0 {
			t.Error("remembered too long")
		}
		c.Put(at("3"), false)
		c.Forget(second)
		if _, ok := c.Get(a1); !ok {
			t.Error("a newer place was forgotten")
		}
	})
	none := actor.NewAssignments(0)
	if none.Put(actor.Actor{Ref: a1}, false); none.Len() != 0 {
		t.Error("remembered without a time")
	}
	c := actor.NewAssignments(time.Hour)
	for i := range actor.MaxAssignments + 100 {
		c.Put(actor.Actor{Ref: actor.Ref{Atespace: "demo", Name: fmt.Sprint(i)}}, false)
	}
	if c.Len() > actor.MaxAssignments {
		t.Errorf("%d places", c.Len())
	}
	if room := actor.MaxAssignments - c.Len(); room < actor.MaxAssignments/32 { // else all are looked at for each one that comes
		t.Errorf("room for %d more after some had to go", room)
	}
}

// authorized is Authorize by enumeration: every combination of items of every rule.
func authorized(a *actor.Access, q actor.Asked) bool {
	if a.Anyone {
		return true
	}
	if q.Caller == "" {
		return false
	}
	for _, id := range a.Trusted {
		if id == q.Caller {
			return true
		}
	}
	names := []string{q.Ref.Atespace + "/" + q.Ref.Name, q.Ref.Atespace + "/*", "*/*"}
	var paths []string
	for i := range len(q.Path) + 1 {
		if i == len(q.Path) || q.Path[i] == '/' {
			paths = append(paths, q.Path[:i], q.Path[:i]+"/")
		}
	}
	for _, r := range a.Rules {
		ok := false
		for _, c := range r.Callers {
			ok = ok || c == q.Caller
		}
		actors, ports, methods, under := false, r.Ports == nil, r.Methods == nil, r.Paths == nil
		for _, x := range r.Actors {
			actors = actors || slices.Contains(names, x)
		}
		for _, x := range r.Ports {
			ports = ports || x == q.Port
		}
		for _, x := range r.Methods {
			methods = methods || x == q.Method
		}
		for _, x := range r.Paths {
			under = under || slices.Contains(paths, x)
		}
		if ok && actors && ports && methods && under {
			return true
		}
	}
	return false
}

func TestAuthorizeTwin(t *testing.T) {
	ids, names := []string{"spiffe://d/a", "spiffe://d/b", "spiffe://d/ab"}, []string{"a", "b"}
	paths := []string{"/", "/a", "/a/", "/a/b", "/ab", "/b"}
	rapid.Check(t, func(t *rapid.T) {
		some := func(what string, from []string) []string {
			return rapid.SliceOfNDistinct(rapid.SampledFrom(from), 0, 2, rapid.ID).Draw(t, what)
		}
		optional := func(what string, from []string) []string {
			if s := some(what, from); len(s) > 0 {
				return s
			}
			return nil
		}
		a := actor.Access{Anyone: rapid.IntRange(0, 9).Draw(t, "anyone") == 0, Trusted: some("trusted", ids)}
		for range rapid.IntRange(0, 3).Draw(t, "rules") {
			r := actor.AccessRule{
				Name: "r", Callers: some("callers", ids), Actors: some("actors", []string{"a/a", "a/b", "a/*", "b/a", "*/*"}),
				Methods: optional("methods", []string{"GET", "POST"}), Paths: optional("paths", paths),
			}
			if rapid.Bool().Draw(t, "ports") {
				r.Ports = []uint16{80}
			}
			a.Rules = append(a.Rules, r)
		}
		q := actor.Asked{
			Caller: rapid.SampledFrom(append([]string{""}, ids...)).Draw(t, "caller"),
			Ref:    actor.Ref{Atespace: rapid.SampledFrom(names).Draw(t, "atespace"), Name: rapid.SampledFrom(names).Draw(t, "name")},
			Port:   rapid.SampledFrom([]uint16{80, 81}).Draw(t, "port"), Method: rapid.SampledFrom([]string{"GET", "POST", "get"}).Draw(t, "method"),
			Path: rapid.SampledFrom(paths).Draw(t, "path"),
		}
		reached := a
		reached.Rules = nil
		for _, r := range a.Rules {
			r.Methods, r.Paths = nil, nil
			reached.Rules = append(reached.Rules, r)
		}
		if d := a.Reaches(q); d.Allowed != authorized(&reached, q) {
			t.Fatalf("a tunnel: %+v for %+v by %+v", d, q, a)
		}
		if d := a.Authorize(q); d.Allowed != authorized(&a, q) || d.By == "" {
			t.Fatalf("%+v for %+v by %+v", d, q, a)
		}
	})
}

// The set of fields is the same in any case and length.
func TestPrivateFields(t *testing.T) {
	for _, name := range []string{"ate-target-actor", "x-ate-target-port", "x-ate-original-dst", "x-ate-original-host", "ate-endpoint-cached", "x-ate-assignment-stale", "ate-router-reason"} {
		b := []byte(name)
		for i := range b {
			if rand.IntN(2) == 0 {
				b[i] = strings.ToUpper(string(b[i]))[0]
			}
		}
		if !actor.Private(b) || actor.Private(b[1:]) || actor.Private(append(b, 'x')) {
			t.Errorf("%s", b)
		}
	}
	if actor.Private(nil) || actor.Private([]byte(strings.Repeat("x", 100))) {
		t.Error("what is none")
	}
}

// Who a caller is stands in a certificate that holds now, byte for byte, and in no field of a request.
func TestCaller(t *testing.T) {
	certificate := func(change func(*x509.Certificate)) *conn.Info {
		t.Helper()
		_, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
		c.URIs = []*url.URL{{Scheme: "spiffe", Host: "d", Path: "/a"}}
		change(c)
		der, err := x509.CreateCertificate(nil, c, c, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return &conn.Info{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}, VerifiedChains: [][]*x509.Certificate{{leaf}}}}
	}
	good := certificate(func(*x509.Certificate) {})
	unverified := certificate(func(*x509.Certificate) {})
	unverified.TLS.VerifiedChains = nil
	for name, tc := range map[string]struct {
		info *conn.Info
		want string
	}{
		"nothing known":            {nil, ""},
		"clear text":               {&conn.Info{Identity: "spiffe://d/a"}, ""},
		"a certificate":            {good, "spiffe://d/a"},
		"one that nobody verified": {unverified, ""},
		"around a tunnel":          {&conn.Info{Outer: good}, "spiffe://d/a"},
		"around another":           {&conn.Info{Outer: good, TLS: certificate(func(c *x509.Certificate) { c.URIs[0].Path = "/b" }).TLS}, "spiffe://d/b"},
		"two URIs":                 {certificate(func(c *x509.Certificate) { c.URIs = append(c.URIs, &url.URL{Scheme: "spiffe", Host: "d", Path: "/b"}) }), ""},
		"none":                     {certificate(func(c *x509.Certificate) { c.URIs, c.DNSNames = nil, []string{"d"} }), ""},
		"another case":             {certificate(func(c *x509.Certificate) { c.URIs[0].Scheme = "SPIFFE" }), "SPIFFE://d/a"},
		"over":                     {certificate(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }), ""},
		"not yet":                  {certificate(func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) }), ""},
	} {
		if got := actor.Caller(tc.info); got != tc.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// What is decided about is the method that the actor gets: a handshake of WebSocket arrives as GET, however it was spelled.
func TestUpgradeIsGET(t *testing.T) {
	rule := func(method string) actor.Access {
		return actor.Access{Rules: []actor.AccessRule{{Name: "r", Callers: []string{"spiffe://d/a"}, Actors: []string{"*/*"}, Methods: []string{method}}}}
	}
	for _, tc := range []struct {
		method, upgrade, allow string
		want                   bool
	}{
		{"GET", "websocket", "GET", true},
		{"CONNECT", "websocket", "GET", true}, // RFC 8441
		{"CONNECT", "websocket", "CONNECT", false},
		{"POST", "", "GET", false},
	} {
		var x exchange.Exchange
		x.Request.Method, x.Request.Normal = []byte(tc.method), []byte("/")
		if tc.upgrade != "" {
			x.Request.Upgrade = []byte(tc.upgrade)
		}
		x.Request.Fields.Add(actor.TargetField, a1.String())
		a := rule(tc.allow)
		if _, d, err := a.Judge(&x, "spiffe://d/a"); d.Allowed != tc.want || (err == nil) != tc.want {
			t.Errorf("%+v: %+v %v", tc, d, err)
		}
	}
}

// Counts only grow, also when the way that they are of has ended.
func TestCountsOutliveWays(t *testing.T) {
	clock := conn.NewClock()
	ways := actor.NewWays(clock, nil)
	actor.EndWay(ways, clock, 3)
	actor.EndWay(ways, clock, 4)
	ways.Close()
	if s := ways.Stats(); s.Ways != 0 || s.Resumes != 7 || s.Hits != 7 || s.Stale != 7 {
		t.Errorf("%+v", s)
	}
}
