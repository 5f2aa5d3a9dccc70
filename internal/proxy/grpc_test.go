package proxy_test

import (
	"crypto/tls"
	"io"
	"log/slog"
	"math"
	"math/big"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/proxy"
	"github.com/sluice-proxy/sluice/internal/service"
)

var timeoutForm = regexp.MustCompile(`^[0-9]{1,8}[HMSmun]$`)

// FuzzParseTimeout compares with a regular expression and big numbers.
func FuzzParseTimeout(f *testing.F) {
	for _, s := range []string{"1S", "99999999H", "2562047H", "2562048H", "00000001n", "0S", "", "S", "1", "1s", "-1S", "+1S", "1 S", "1.5S", "123456789S", "1SS"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		d, err := proxy.ParseTimeout([]byte(in))
		if !timeoutForm.MatchString(in) {
			if err == nil {
				t.Errorf("%q is %v", in, d)
			}
			return
		}
		units := map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': 1}
		want, _ := new(big.Int).SetString(in[:len(in)-1], 10)
		want.Mul(want, big.NewInt(int64(units[in[len(in)-1]])))
		if longest := big.NewInt(math.MaxInt64); want.Cmp(longest) > 0 {
			want = longest
		}
		if err != nil || want.Int64() != int64(d) {
			t.Errorf("%q is %v, %v; want %v", in, d, err, want)
		}
	})
}

// call is a gRPC request with these fields besides.
func call(fields ...string) string {
	return "POST /a.B/C HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\nContent-Length: 0\r\n" + strings.Join(fields, "\r\n") + "\r\n\r\n"
}

func TestCallsWithoutTime(t *testing.T) {
	for _, tc := range []struct {
		name   string
		fields []string
		status string
		code   exchange.Code
		limit  string
	}{
		{"expired", []string{"grpc-timeout: 1n"}, "4", exchange.CodeDeadlineExceeded, "grpc-timeout"},
		{"zero", []string{"grpc-timeout: 0S"}, "4", exchange.CodeDeadlineExceeded, "grpc-timeout"},
		{"malformed", []string{"grpc-timeout: 1s"}, "13", exchange.CodeBadRequest, ""},
		{"empty", []string{"grpc-timeout:"}, "13", exchange.CodeBadRequest, ""},
		{"twice", []string{"grpc-timeout: 9S", "grpc-timeout: 9S"}, "13", exchange.CodeBadRequest, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBackend(t, replies(ok))
			g := newGateway(t, plainMode, options{}, b.addr)
			a := g.ask(t, call(tc.fields...))
			if a.status() != "200" || a.header.Get("Grpc-Status") != tc.status || a.body != "" {
				t.Errorf("answer %+v", a)
			}
			r := g.record(0)
			if r.Code != tc.code || r.Limit != tc.limit || len(r.Attempts) != 0 || b.opened() != 0 {
				t.Errorf("record %+v; %d connections", r, b.opened())
			}
		})
	}
}

// The client's own deadline ends the wait for a backend, on whichever stage, and is no fault of the backend's.
func TestCallDeadline(t *testing.T) {
	full, free, err := fullListener()
	if err != nil {
		t.Skip(err)
	}
	defer free()
	silent := newBackend(t, func(p *peer) { p.gone(patience) })
	slow := foreignH2C(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	for _, tc := range []struct{ name, backend string }{
		{"connecting", full}, {"waiting for HTTP/2", silent.addr}, {"waiting for the head", slow},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newGateway(t, plainMode, options{}, tc.backend)
			begun := time.Now()
			a := g.ask(t, call("grpc-timeout: 300m"))
			if took := time.Since(begun); took < 300*time.Millisecond || took > soon {
				t.Errorf("took %v", took)
			}
			if a.status() != "200" || a.header.Get("Grpc-Status") != "4" || a.header.Get("Grpc-Message") != "Deadline exceeded" {
				t.Errorf("answer %+v", a)
			}
			r := g.ended(0, exchange.OutcomeFailed, exchange.CodeDeadlineExceeded, "grpc-timeout")
			if len(r.Attempts) != 1 || r.Attempts[0].Code != exchange.CodeDeadlineExceeded {
				t.Errorf("attempts %+v", r.Attempts)
			}
			for _, s := range g.lb.AppendStats(nil) {
				if s.Refused != 0 || s.Skipped {
					t.Errorf("the backend is blamed: %+v", s)
				}
			}
		})
	}
}

// request_timeout caps a call that allows more; what is no call has no deadline.
func TestCallDeadlineIsCapped(t *testing.T) {
	slow := foreignH2C(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	short := options{service: func(l *config.LoadBalancer) { l.RequestTimeout = time.Second }} // in which the connection is made
	g := newGateway(t, plainMode, short, slow)
	if a := g.ask(t, call("grpc-timeout: 99999999H")); a.header.Get("Grpc-Status") != "4" {
		t.Errorf("answer %+v", a)
	}
	g.ended(0, exchange.OutcomeFailed, exchange.CodeResponseTimeout, "request_timeout")
	b := newBackend(t, replies(ok))
	g = newGateway(t, plainMode, options{}, b.addr)
	if a := g.ask(t, strings.Replace(call("grpc-timeout: 1n"), "grpc\r", "grpc-web\r", 1)); a.body != "ok" {
		t.Errorf("answer %+v", a)
	}
	if !strings.Contains(b.got(), "grpc-timeout: 1n") {
		t.Error("grpc-timeout is not passed on")
	}
}

// A call goes over HTTP/2 to every kind of backend, also where all else goes over HTTP/1.1.
func TestCallsGoOverHTTP2(t *testing.T) {
	says := func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }
	secure := func(protocols ...string) string {
		s := httptest.NewUnstartedServer(http.HandlerFunc(says))
		s.EnableHTTP2 = len(protocols) > 1
		s.TLS = &tls.Config{Certificates: serverTLS.Certificates, NextProtos: protocols}
		s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
		s.StartTLS()
		t.Cleanup(s.Close)
		return s.URL
	}
	clear := foreignH2C(t, says)
	roots := caFile(t)
	both := config.HTTP1 | config.HTTP2
	for _, tc := range []struct {
		name, url   string
		alpn        config.Protocols
		call, other string
	}{
		{"h2c", clear, 0, "HTTP/2.0", "HTTP/2.0"},
		{"http", strings.Replace(clear, "h2c", "http", 1), 0, "HTTP/2.0", "HTTP/1.1"},
		{"https", secure("h2", "http/1.1"), config.HTTP1, "HTTP/2.0", "HTTP/1.1"},
		{"https with a choice", secure("h2", "http/1.1"), both, "HTTP/2.0", "HTTP/2.0"},
		{"https with h2 alone", secure("h2", "http/1.1"), config.HTTP2, "HTTP/2.0", "HTTP/2.0"},
		{"https that cannot", secure("http/1.1"), config.HTTP1, "", "HTTP/1.1"},
		{"https that chooses otherwise", secure("http/1.1"), both, "", "HTTP/1.1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newGateway(t, kernelMode, options{service: func(l *config.LoadBalancer) {
				l.Transport.CAFile, l.Transport.ALPN = roots, tc.alpn
			}}, tc.url)
			for range 2 {
				a := g.ask(t, call("Connection: close"))
				if tc.call != "" && a.body != tc.call {
					t.Errorf("a call went over %q: %+v", a.body, a)
				}
				if tc.call == "" && (a.header.Get("Grpc-Status") != "14" || a.header.Get("X-Request-Id") == "") {
					t.Errorf("a call ended with %+v", a)
				}
				if a := g.ask(t, get); a.body != tc.other {
					t.Errorf("all else went over %q", a.body)
				}
			}
			refused := 0
			for i := range 4 { // in whatever order the exchanges have ended
				if g.record(i).Code == exchange.CodeTLSFailed {
					refused++
				}
			}
			if want := map[bool]int{true: 2}[tc.call == ""]; refused != want {
				t.Errorf("%d of the calls are recorded as refused for TLS, want %d", refused, want)
			}
		})
	}
}

// A backend that speaks HTTP/1.1 alone is not passed over because somebody has called it: anybody can.
func TestCallsDoNotSpoilBackends(t *testing.T) {
	plain := func() string {
		return newBackend(t, func(p *peer) { p.sendAny("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n") }).addr
	}
	silent := newBackend(t, func(p *peer) { p.gone(patience) })
	secure := backendOn(t, &tls.Config{Certificates: serverTLS.Certificates, NextProtos: []string{"http/1.1"}}, func(p *peer) { _, _ = p.closed(patience) })
	roots := caFile(t)
	for _, tc := range []struct {
		name     string
		backends []string
		alpn     config.Protocols
		timeout  time.Duration // to connect within
	}{
		{"http", []string{plain(), plain()}, 0, patience},
		{"http that waits", []string{silent.addr}, 0, 300 * time.Millisecond},
		{"https", []string{"https://" + secure.addr}, config.HTTP1, patience},
		{"https with a choice", []string{"https://" + secure.addr}, config.HTTP1 | config.HTTP2, patience},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := newGateway(t, plainMode, options{service: func(l *config.LoadBalancer) {
				l.Transport.CAFile, l.Transport.ALPN, l.Transport.ConnectTimeout = roots, tc.alpn, tc.timeout
			}}, tc.backends...)
			if a := g.ask(t, call()); a.status() != "200" || a.header.Get("Grpc-Status") != "14" {
				t.Errorf("answer %+v", a)
			}
			if r := g.record(0); len(r.Attempts) != len(tc.backends) {
				t.Errorf("attempts %+v", r.Attempts)
			}
			for _, s := range g.lb.AppendStats(nil) {
				if s.Refused != 0 || s.Skipped {
					t.Errorf("the backend is blamed: %+v", s)
				}
			}
		})
	}
	t.Run("that is not there", func(t *testing.T) {
		g := newGateway(t, plainMode, options{}, refusing(t))
		g.ask(t, call())
		if s := g.lb.AppendStats(nil)[0]; s.Refused != 1 || !s.Skipped {
			t.Errorf("the backend is not blamed: %+v", s)
		}
	})
}

// The wait for a connection that another call opens is part of the time that a call has.
func TestCallDeadlineHoldsForSharedDials(t *testing.T) {
	t.Parallel()
	const opening, limit = 2700 * time.Millisecond, 3 * time.Second
	b := newBackend(t, func(p *peer) {
		p.quietly(opening)
		p.sendAny("\x00\x00\x00\x04\x00\x00\x00\x00\x00") // SETTINGS without any
		_, _ = p.closed(patience)
	})
	g := newGateway(t, plainMode, options{}, b.addr)
	var calls sync.WaitGroup
	for range 2 {
		calls.Go(func() {
			begun := time.Now()
			a := g.ask(t, call("grpc-timeout: 3S"))
			if took := time.Since(begun); took < limit || took > limit+opening*3/4 || a.header.Get("Grpc-Status") != "4" {
				t.Errorf("took %v: %+v", took, a)
			}
		})
	}
	calls.Wait()
	if n := b.opened(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// parking is backends of which one has to be woken first.
type parking struct {
	proxy.Backends
	wait time.Duration
}

func (p parking) Pick(x *exchange.Exchange, tried *service.Tried) (service.Lease, error) {
	<-time.After(p.wait)
	return p.Backends.Pick(x, tried)
}

// So is the wait for a backend that has to be woken.
func TestCallDeadlineHoldsForParking(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second
	for _, parked := range []time.Duration{1800 * time.Millisecond, 3 * time.Second} {
		t.Run(parked.String(), func(t *testing.T) {
			t.Parallel()
			g := newGateway(t, plainMode, options{}, foreignH2C(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
			g.next = proxy.New(parking{g.lb, parked})
			begun := time.Now()
			a := g.ask(t, call("grpc-timeout: 2S"))
			if took := time.Since(begun); took < limit || took >= parked+limit || a.header.Get("Grpc-Status") != "4" {
				t.Errorf("took %v: %+v", took, a)
			}
		})
	}
}
