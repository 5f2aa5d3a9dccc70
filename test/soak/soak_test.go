//go:build linux

package soak_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soak is one run.
type soak struct {
	*report
	plan    plan
	setup   *setup
	gateway *gateway

	stop    atomic.Bool
	workers sync.WaitGroup
	extras  sync.WaitGroup // streams over the entrypoint that comes and goes
	reloads int
}

// Requests, streams and uploads go on while the configuration is reloaded and the binary replaced. None fails, none is
// cut, and in the end the gateway holds no more than in the beginning.
func TestSoakReloadsAndUpgrades(t *testing.T) {
	s := &soak{plan: chosen(t)}
	folder := t.TempDir()
	s.gateway = &gateway{versions: build(t, folder, s.plan.upgrades+1)}
	s.report = newReport()
	addresses := freeAddresses(t, 4)
	s.setup = &setup{
		folder: folder, ca: newAuthority(t), web: addresses[0], tls: addresses[1], extra: addresses[2], manage: addresses[3],
	}
	for _, name := range []string{"one", "two", "three"} {
		s.setup.backends = append(s.setup.backends, startBackend(t, name, s.report))
	}
	s.gateway.setup = s.setup
	if err := s.setup.write(0); err != nil {
		t.Fatal(err)
	}
	s.gateway.start(t)
	base := s.base(t)

	s.began = time.Now()
	s.startLoad()
	s.operate()
	s.stop.Store(true)
	s.workers.Wait()
	s.extras.Wait()
	s.event("all work has ended")
	loaded := time.Since(s.began)

	rows := [][2]string{
		{"reloads", fmt.Sprint(s.reloads)},
		{"upgrades", fmt.Sprintf("%d, from %s to %s", s.gateway.release, version(0), version(s.gateway.release))},
		{"under load for", loaded.Round(100 * time.Millisecond).String()},
	}
	rows = append(rows, s.retired()...)
	rows = append(rows, s.settled(base)...)
	rows = append(rows, s.end()...)
	s.print(t, rows, s.gateway.logged(), s.setup.accessLog())
	if s.streams.Load() < int64(s.plan.streams) || s.uploads.Load() < int64(s.plan.uploads) || s.failed() == 0 && s.asked.Load() == 0 {
		t.Error("too little happened for this to mean anything")
	}
}

// build builds the binaries that will replace each other.
func build(t *testing.T, folder string, n int) []string {
	t.Helper()
	all := make([]string, n)
	for i := range all {
		var err error
		if all[i], err = gatewaytest.Build(folder, version(i), version(i)); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// base is what the gateway holds before there is work, with health checks under way.
func (s *soak) base(t *testing.T) map[string]float64 {
	t.Helper()
	time.Sleep(1500 * time.Millisecond) // the interval of the health checks and a half
	m, err := s.gateway.metrics()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// client makes a client; every third speaks TLS.
func (s *soak) client(kind string, i int) *client {
	c := &client{name: fmt.Sprintf("%s%d", kind, i), report: s.report, address: s.setup.web}
	if i%3 == 2 {
		c.address, c.roots = s.setup.tls, s.setup.ca.pool()
	}
	return c
}

func (s *soak) startLoad() {
	for i := range s.plan.connections {
		s.workers.Go(func() { s.client("load", i).load(&s.stop) })
	}
	// Beside those that are always busy, some that mostly are not: what they send next after a change comes to a
	// connection that has been idle over it.
	for i := range s.plan.connections / 4 {
		c := s.client("idle", i)
		c.rest = 3 * time.Second
		s.workers.Go(func() { c.load(&s.stop) })
	}
	for i := range s.plan.connections / 16 {
		c := newClient2(fmt.Sprintf("two%d", i), s)
		var using sync.WaitGroup
		for range perConnection2 {
			using.Go(func() { c.load(&s.stop) })
		}
		using.Go(func() {
			for !s.stop.Load() {
				c.stream(s.plan.streamTime)
			}
		})
		s.workers.Go(func() {
			using.Wait()
			c.transport.CloseIdleConnections()
		})
	}
	repeat := func(c *client, after time.Duration, f func()) {
		s.workers.Go(func() {
			defer c.close()
			time.Sleep(after) // not all at once
			for !s.stop.Load() {
				f()
			}
		})
	}
	for i := range s.plan.streams {
		c := s.client("stream", i)
		repeat(c, time.Duration(i)*s.plan.streamTime/time.Duration(4*s.plan.streams), func() { c.stream(s.plan.streamTime) })
	}
	for i := range s.plan.uploads {
		c := s.client("upload", i)
		repeat(c, 0, c.upload)
	}
}

// operate reloads and upgrades, spread evenly over the work, and returns when all has been done.
func (s *soak) operate() {
	upgrades := 0
	for {
		p := s.plan.progress(s.answered.Load(), time.Since(s.began))
		switch {
		case s.failed() > maxFailures:
			s.event("given up: too many failures")
			return
		case upgrades < s.plan.upgrades && p >= float64(upgrades+1)/float64(s.plan.upgrades+1):
			upgrades++
			s.upgrade()
			s.reload() // at once, while the old process still drains
		case s.reloads < s.plan.reloads && p >= float64(s.reloads+1)/float64(s.plan.reloads+1):
			s.reload()
		case p >= 1 && s.reloads >= s.plan.reloads:
			return
		default:
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func (s *soak) upgrade() {
	s.event("upgrade to %s begins", version(s.gateway.release+1))
	began := time.Now()
	if err := s.gateway.upgrade(); err != nil {
		s.fail("upgrade", "", "%v", err)
		return
	}
	s.event("upgrade done after %s: process %d serves", time.Since(began).Round(time.Millisecond), s.gateway.pid)
}

// reload puts the next configuration into force and checks that it is.
func (s *soak) reload() {
	s.reloads++
	number := s.reloads
	before, err := s.gateway.health()
	if err == nil {
		err = s.setup.write(number)
	}
	if err == nil {
		s.event("reload %d begins, entrypoint extra: %v", number, hasExtra(number))
		err = syscall.Kill(s.gateway.pid, syscall.SIGHUP)
	}
	for end := time.Now().Add(10 * time.Second); err == nil; time.Sleep(5 * time.Millisecond) {
		var now health
		if now, err = s.gateway.health(); err == nil && now.Generation > before.Generation {
			break
		}
		if err == nil && time.Now().After(end) {
			err = fmt.Errorf("generation stays %d", now.Generation)
		}
	}
	if err != nil {
		s.fail("reload", "", "reload %d: %v", number, err)
		return
	}
	s.event("reload %d done", number)
	if err := s.presents(serial(number)); err != nil {
		s.fail("certificate", "", "reload %d: %v", number, err)
	}
	s.probeExtra(number)
}

// presents makes a handshake and compares the serial number of the certificate.
func (s *soak) presents(want int64) error {
	c, err := tls.Dial("tcp", s.setup.tls, &tls.Config{RootCAs: s.setup.ca.pool(), ServerName: serverName})
	if err != nil {
		return err
	}
	defer c.Close()
	if got := c.ConnectionState().PeerCertificates[0].SerialNumber.Int64(); got != want {
		return fmt.Errorf("certificate %d is presented, want %d", got, want)
	}
	return nil
}

// probeExtra starts a stream over the entrypoint that comes and goes, which will outlive it, or sees that it has gone.
func (s *soak) probeExtra(number int) {
	if hasExtra(number) {
		c := &client{name: fmt.Sprintf("extra%d", number), report: s.report, address: s.setup.extra}
		s.extras.Go(func() {
			defer c.close()
			c.stream(s.plan.streamTime)
		})
		idle := &client{name: fmt.Sprintf("extraidle%d", number), report: s.report, address: s.setup.extra}
		s.extras.Go(func() {
			defer idle.close()
			idle.twice(2 * time.Second)
		})
		return
	}
	if c, err := net.Dial("tcp", s.setup.extra); err == nil {
		_ = c.Close()
		s.fail("entrypoint", "", "reload %d: extra still accepts connections", number)
	}
}

// retired waits for the processes that have been replaced: with the last stream they end by themselves.
func (s *soak) retired() (rows [][2]string) {
	for _, pid := range s.gateway.retired {
		began := time.Now()
		code, err := exitCode(pid, 30*time.Second)
		switch {
		case errors.Is(err, errReaped):
			rows = append(rows, [2]string{"old process", fmt.Sprintf("%d ended before the one that it had replaced", pid)})
			continue
		case err != nil || code != 0:
			s.fail("old process", "", "process %d: exit code %d, %v", pid, code, err)
			continue
		}
		rows = append(rows, [2]string{"old process", fmt.Sprintf("%d exited 0, %s after the last stream", pid, time.Since(began).Round(time.Millisecond))})
	}
	log, err := os.ReadFile(s.gateway.log.Name())
	if stopped := strings.Count(string(log), `"msg":"stopped"`); err != nil || stopped < len(s.gateway.retired) {
		s.fail("old process", "", "%d of %d say that they have stopped, %v", stopped, len(s.gateway.retired), err)
	}
	return rows
}

// held is what must be given back: the metric, and by how much it may differ.
var held = []struct {
	name  string
	slack float64
}{
	{"gateway_generations", 0},
	{"gateway_active_connections", 0},
	{"go_goroutines", 6},
	{"process_open_fds", 4},
}

// settled waits until the gateway holds no more than in the beginning.
func (s *soak) settled(base map[string]float64) (rows [][2]string) {
	began := time.Now()
	for {
		now, err := s.gateway.metrics()
		if err != nil {
			s.fail("management", "", "metrics: %v", err)
			return nil
		}
		over := ""
		rows = nil
		for _, h := range held {
			rows = append(rows, [2]string{h.name, fmt.Sprintf("%.0f before, %.0f after %s of rest", base[h.name], now[h.name], time.Since(began).Round(100*time.Millisecond))})
			if _, there := now[h.name]; !there || now[h.name] > base[h.name]+h.slack {
				over += fmt.Sprintf(" %s is %.0f, was %.0f;", h.name, now[h.name], base[h.name])
			}
		}
		rows = append(rows, [2]string{"resident", fmt.Sprintf("%.1f MiB before, %.1f after", base["process_resident_memory_bytes"]/(1<<20), now["process_resident_memory_bytes"]/(1<<20))})
		if over == "" {
			return rows
		}
		if time.Since(began) > 15*time.Second {
			s.fail("leak", "", "%s descriptors: %s", over, s.gateway.descriptors())
			_ = syscall.Kill(s.gateway.pid, syscall.SIGQUIT) // writes its goroutines to the log
			return rows
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// end ends the last process.
func (s *soak) end() [][2]string {
	began := time.Now()
	_ = syscall.Kill(s.gateway.pid, syscall.SIGTERM)
	code, err := exitCode(s.gateway.pid, 15*time.Second)
	if err != nil || code != 0 {
		s.fail("exit", "", "last process %d: exit code %d, %v", s.gateway.pid, code, err)
		keep := filepath.Join(os.TempDir(), "sluice-soak.log")
		if replace(keep, []byte(s.gateway.logged())) == nil {
			s.event("its log is in %s", keep)
		}
		return nil
	}
	return [][2]string{{"last process", fmt.Sprintf("exited 0 after %s", time.Since(began).Round(time.Millisecond))}}
}
