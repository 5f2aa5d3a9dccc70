package app_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

const websocket = "GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

// begin orders the shutdown without waiting for it.
func begin(g *gatewaytest.Gateway) {
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	_ = g.Shutdown(gone)
}

// ended waits for the end of a gateway.
func ended(t *testing.T, g *gatewaytest.Gateway) {
	t.Helper()
	select {
	case <-g.Done():
		if err := g.Err(); err != nil {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(gatewaytest.Patience):
		t.Fatalf("does not end: %+v", g.Residue())
	}
}

// draining waits until connections have been told to end.
func draining(t *testing.T, g *gatewaytest.Gateway) {
	t.Helper()
	gatewaytest.Until(t, "the socket is closed", func() bool {
		c, err := net.Dial("tcp", g.Addr("web"))
		if err == nil {
			c.Close()
		}
		return err != nil
	})
}

// TestDrain: each kind of connection ends as its client would want it to (KF-CFG-11 to 13).
func TestDrain(t *testing.T) {
	t.Parallel()
	b := gatewaytest.NewBackend(t, "one")
	dir := t.TempDir()
	certFile, keyFile := certificate(t, dir)
	g := gatewaytest.Start(t, site{
		entrypoints: `entrypoints "web" { address = "127.0.0.1:0" }
entrypoints "tls" { address = "127.0.0.1:0", tls { cert_file = "` + certFile + `", key_file = "` + keyFile + `" } }`,
		backends: []string{b.URL},
	}.String())
	web := g.Addr("web")
	sse := gatewaytest.Dial(t, web)
	sse.Send("GET /sse HTTP/1.1\r\nHost: x\r\n\r\n")
	streams := map[string]io.ReadCloser{"h1": sse.Response().Body}
	upload := gatewaytest.Dial(t, web)
	upload.Send("POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nx")
	ws := gatewaytest.Dial(t, web)
	ws.Send(websocket)
	if resp := ws.Response(); resp.StatusCode != 101 {
		t.Fatal(resp.Status)
	}
	for name, c := range map[string]*http.Client{
		"h2":  httpClient(t, func(p *http.Protocols) { p.SetHTTP2(true) }),
		"h2c": httpClient(t, func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) }),
	} {
		url := "https://" + g.Addr("tls") + "/sse"
		if name == "h2c" {
			url = "http://" + web + "/sse"
		}
		resp, err := c.Get(url)
		if err != nil || resp.ProtoMajor != 2 {
			t.Fatalf("%s: %v %v", name, resp, err)
		}
		streams[name] = resp.Body
	}
	gatewaytest.Until(t, "the upload is dispatched", func() bool { return b.Seen.Load() == 5 })
	idle := gatewaytest.Dial(t, web) // the last to come is the last to be told of the drain
	idle.Get("/")

	begin(g)
	draining(t, g)
	idle.Closed()
	if err := g.Reload(t.Context()); !errors.Is(err, app.ErrStopping) {
		t.Errorf("reload during the drain: %v", err)
	}
	for name, body := range streams {
		defer body.Close()
		lines := bufio.NewReader(body)
		first, _ := lines.ReadString('\n')
		_, _ = lines.ReadString('\n')
		b.Tick()
		if second, err := lines.ReadString('\n'); err != nil || first == second {
			t.Errorf("%s stream during the drain: %q %q %v", name, first, second, err)
		}
	}
	ws.Send("y")
	if c, err := ws.R.ReadByte(); c != 'y' || err != nil {
		t.Errorf("upgraded connection during the drain: %q %v", c, err)
	}
	upload.Send("yz")
	if resp := upload.Response(); resp.StatusCode != 200 || !resp.Close {
		t.Errorf("upload: %v, close %v", resp.Status, resp.Close)
	}
	select {
	case <-g.Done():
		t.Fatal("ended with streams open")
	default:
	}
	b.Finish()
	for name, body := range streams {
		if _, err := io.Copy(io.Discard, body); err != nil {
			t.Errorf("%s stream's end: %v", name, err)
		}
	}
	ws.Close()
	ended(t, g)
	for range 6 { // idle's one, three streams, upload, upgrade: one line each
		line := g.Lines.Next(t)
		if o := line.Text("outcome"); line.Number("status") == 101 && o != "upgraded" || line.Number("status") != 101 && o != "ok" {
			t.Errorf("%v", line)
		}
	}
	g.Lines.None(t)
}

// TestDrainDeadline: what stays is ended at the deadline, and told apart in the log (KF-CFG-09, KF-CFG-11).
func TestDrainDeadline(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, timeout string
		force         bool
	}{
		{"after its time", "1", false}, {"at once with 0", "0", false}, {"forced", "3600", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := gatewaytest.NewBackend(t, "one")
			g := gatewaytest.Start(t, site{backends: []string{b.URL}, extra: "shutdown_timeout_secs = " + tc.timeout + "\n"}.String())
			sse := gatewaytest.Dial(t, g.Addr("web"))
			sse.Send("GET /sse HTTP/1.1\r\nHost: x\r\n\r\n")
			stream := sse.Response()
			ws := gatewaytest.Dial(t, g.Addr("web"))
			ws.Send(websocket)
			ws.Response()
			began := time.Now()
			begin(g)
			if tc.force {
				draining(t, g)
				g.Force()
				g.Force() // a second one changes nothing
			}
			ended(t, g)
			if d := time.Since(began); d > 6*time.Second {
				t.Errorf("took %v", d)
			}
			if _, err := io.Copy(io.Discard, stream.Body); err == nil {
				t.Error("the cut stream looks whole")
			}
			if _, err := io.Copy(io.Discard, ws.R); err != nil && !strings.Contains(err.Error(), "reset") {
				t.Error(err)
			}
			for range 2 {
				if line := g.Lines.Next(t); line.Text("outcome") != "drained" {
					t.Errorf("%v", line)
				}
			}
			g.Lines.None(t)
		})
	}
}

// TestShutdownConcurrently: everybody who shuts down learns of the same end.
func TestShutdownConcurrently(t *testing.T) {
	g := gatewaytest.Start(t, site{backends: []string{"http://127.0.0.1:1"}}.String())
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if i%4 == 3 {
				_ = g.Reload(t.Context())
				return
			}
			if err := g.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if g.State() != "stopped" {
		t.Errorf("state %s", g.State())
	}
	if err := g.Reload(t.Context()); !errors.Is(err, app.ErrStopping) {
		t.Errorf("reload after the end: %v", err)
	}
}

// TestReloadsAgainstShutdown: whatever a reload has reached when the end comes, nothing of it is left.
func TestReloadsAgainstShutdown(t *testing.T) {
	for i := range 20 {
		g := gatewaytest.Start(t, site{backends: []string{"http://127.0.0.1:1"}}.String())
		var reloading sync.WaitGroup
		reloading.Go(func() {
			for n := 0; ; n++ {
				s := site{entrypoints: `entrypoints "web" { address = "127.0.0.1:0" }`, backends: []string{"http://127.0.0.1:1"}, rule: fmt.Sprintf("Path(`/%d`)", n)}
				if n%2 == 0 {
					s.entrypoints += "\nentrypoints \"more\" { address = \"127.0.0.1:0\" }"
				}
				if err := g.ReloadText(t.Context(), s.String()); err != nil {
					return
				}
			}
		})
		time.Sleep(time.Duration(i) * 200 * time.Microsecond) // spreads where the end meets the reload
		g.Stop()
		reloading.Wait()
	}
}

const management = `management {
  enabled = true
  address = "127.0.0.1:0"
  auth_token_env = "SLUICE_TEST_TOKEN"
  allowed_ips = ["127.0.0.1"]
  probe_address = "127.0.0.1:0"
}
`

// ask gets a path of management.
func ask(t testing.TB, addr, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+addr+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer token-canary")
	req.Close = true
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// TestShutdownDelay: readiness fails at once, traffic goes on until the delay is over, liveness to the end (KF-CFG-14).
func TestShutdownDelay(t *testing.T) {
	t.Parallel()
	b := gatewaytest.NewBackend(t, "one")
	g := gatewaytest.Start(t, site{backends: []string{b.URL}, extra: "shutdown_delay_secs = 3600\n" + management}.String())
	probe := g.Addr("management-probe")
	if code, _ := ask(t, probe, "/readyz"); code != 200 {
		t.Fatalf("readiness %d", code)
	}
	c := gatewaytest.Dial(t, g.Addr("web"))
	c.Get("/")
	begin(g)
	gatewaytest.Until(t, "readiness fails", func() bool { code, _ := ask(t, probe, "/readyz"); return code == 503 })
	if code, _ := ask(t, probe, "/livez"); code != 200 {
		t.Errorf("liveness %d", code)
	}
	if resp, body := c.Get("/"); body != "one" || resp.Close {
		t.Errorf("an open connection gets %q, close %v", body, resp.Close)
	}
	if _, body := gatewaytest.Dial(t, g.Addr("web")).Get("/"); body != "one" {
		t.Errorf("a new connection gets %q", body)
	}
	if err := g.Reload(t.Context()); !errors.Is(err, app.ErrStopping) {
		t.Errorf("reload during the delay: %v", err)
	}
	sse := gatewaytest.Dial(t, g.Addr("web"))
	sse.Send("GET /sse HTTP/1.1\r\nHost: x\r\n\r\n")
	sse.Response()
	g.Force()
	ended(t, g)
}

// TestManagementReload: its listener comes, moves and goes with the configuration; a bad change leaves it (KF-CFG-15).
func TestManagementReload(t *testing.T) {
	s := site{backends: []string{"http://127.0.0.1:1"}}
	g := gatewaytest.Start(t, s.String())
	if len(g.Bound()) != 1 {
		t.Fatalf("bound %v", g.Bound())
	}
	s.extra = management
	g.Apply(s.String())
	main := g.Addr("management")
	if code, body := ask(t, main, "/api/gateway/health"); code != 200 || !strings.Contains(body, `"generation": 2`) || !strings.Contains(body, `"Running"`) {
		t.Errorf("health %d %s", code, body)
	}
	_, metrics := ask(t, main, "/api/gateway/metrics")
	for series, want := range map[string]float64{`gateway_config_reloads_total{result="success"}`: 2, `gateway_generations`: 1} {
		if v := gatewaytest.Metric(metrics, series); v != want {
			t.Errorf("%s is %v, want %v", series, v, want)
		}
	}
	s.extra = strings.Replace(management, "SLUICE_TEST_TOKEN", "SLUICE_TEST_ABSENT", 1)
	if err := g.ReloadText(t.Context(), s.String()); err == nil || !strings.Contains(err.Error(), "SLUICE_TEST_ABSENT") {
		t.Errorf("without its token: %v", err)
	}
	if code, _ := ask(t, main, "/api/gateway/health"); code != 200 || g.Addr("management") != main {
		t.Errorf("the refused change has touched management: %d", code)
	}
	s.extra = ""
	g.Apply(s.String())
	if len(g.Bound()) != 1 {
		t.Errorf("bound %v", g.Bound())
	}
}
