package netns_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/template"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/control"
	"github.com/sluice-proxy/sluice/internal/fabric"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
	"github.com/sluice-proxy/sluice/internal/worker"
)

// BenchmarkConnectHop compares what a request to an actor costs: through the router and the worker, and through two Envoys that carry
// it over the same CONNECT of mutual TLS and HTTP/2. The figure is the processor time of the two processes for each request, by
// /proc; what client, actor and control plane use does not count. All ways lead to the same actor over the same cable: the second
// Envoy runs in the actor's gateway namespace, and listens outside of it. The first process of each logs requests to a file. A request
// has a tunnel of its own, as between router and worker; "envoy, tunnels kept" lets Envoy use one for the next request of whomever.
//
//	go test ./test/netns -run '^$' -bench ConnectHop -benchtime 3x
func BenchmarkConnectHop(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("SKIPPED: the worker needs root")
	}
	wrk := gatewaytest.Peer(b, "wrk")
	h := newHop(b)
	for _, way := range []struct {
		name  string
		start func(b *testing.B) (addr string, processes [2]*gatewaytest.Process)
	}{
		{"sluice", h.sluice},
		{"envoy", func(b *testing.B) (string, [2]*gatewaytest.Process) { return h.envoys(b, true) }},
		{"envoy, tunnels kept", func(b *testing.B) (string, [2]*gatewaytest.Process) { return h.envoys(b, false) }},
	} {
		b.Run(way.name, func(b *testing.B) {
			addr, processes := way.start(b)
			load(b, wrk, addr, "1s") // warm
			before, requests, seconds := [2]time.Duration{spent(b, processes[0]), spent(b, processes[1])}, 0, 0.0
			for b.Loop() {
				n, took := load(b, wrk, addr, "4s")
				requests, seconds = requests+n, seconds+took
			}
			var each [2]float64
			for i, p := range processes {
				each[i] = float64((spent(b, p) - before[i]).Microseconds()) / float64(requests)
			}
			b.ReportMetric(each[0]+each[1], "cpu-µs/request")
			b.ReportMetric(each[0], "first-µs/request")
			b.ReportMetric(each[1], "second-µs/request")
			b.ReportMetric(float64(requests)/seconds, "requests/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// hop is what both ways have in common: the control plane with its certificates, and the actor.
type hop struct {
	b      *testing.B
	dir    string
	plane  *app.Ateapi
	run    fabric.Run
	text   *template.Template
	worker *gatewaytest.Process // has the actor; idle when Envoys carry requests
	port   int                  // of the worker
}

func newHop(b *testing.B) *hop {
	b.Helper()
	run, err := fabric.NewRun(fmt.Sprintf("h%d", time.Now().UnixNano()/1e6%1e9))
	if err != nil {
		b.Fatal(err)
	}
	h := &hop{b: b, dir: b.TempDir(), run: run}
	b.Cleanup(func() { _ = run.Clean(context.Background()) })
	h.plane, err = app.StartAteapi(b.Context(), app.AteapiOptions{
		Listen: "127.0.0.1:0", DataDir: h.dir, Store: app.StoreMemory, Workers: []string{"w1"}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = h.plane.Close() })
	if h.text, err = template.ParseFiles(filepath.Join("testdata", "hop.envoy.yaml")); err != nil {
		b.Fatal(err)
	}
	h.work()
	return h
}

func (h *hop) file(component, mount, name string) string {
	return filepath.Join(app.ComponentDir(h.dir, component), mount, name)
}

const (
	identity = "podidentity.podcert.ate.dev"
	names    = "servicedns.podcert.ate.dev"
	bundle   = "credential-bundle.pem"
	trusted  = "trust-bundle.pem"
)

// work starts the worker and attaches it to the control plane, which has an actor then.
func (h *hop) work() {
	path, err := binary()
	if err != nil {
		h.b.Fatal(err)
	}
	orders := filepath.Join(h.dir, "orders")
	h.port = gatewaytest.FreePorts(h.b, 1)[0]
	h.worker = gatewaytest.Run(h.b, path, "run", "--run", h.run.String(), "--orders", orders,
		"--atunnel-connect-listen-address", fmt.Sprintf("127.0.0.1:%d", h.port),
		"--atunnel-credential-bundle", h.file("worker-w1", identity, bundle), "--atunnel-trust-bundle", h.file("ateapi", identity, trusted))
	h.worker.Await(h.b, "taking orders")
	h.attach(h.b, &ordered{orders: orders, output: filepath.Join(h.dir, "output")})
}

// sluice starts the router before the worker.
func (h *hop) sluice(b *testing.B) (string, [2]*gatewaytest.Process) {
	config := filepath.Join(h.dir, "router.acl")
	text := fmt.Sprintf(`
		entrypoints "web" { address = "127.0.0.1:0" }
		routers "actors" { rule = "PathPrefix(%[1]s/%[1]s)", service = "actors" }
		services "actors" {
			actor {
				control { address = %[2]q, server_name = %[3]q, credential_file = %[4]q, ca_file = %[5]q }
				workers { port = %[6]d, credential_file = %[4]q, ca_file = %[7]q }
				allow_anyone = true
			}
		}
		observability { access_log { output = %[8]q } }`, "`", h.plane.Addr, app.AteapiName, h.file("router", identity, bundle), h.file("admin", names, trusted), h.port,
		h.file("ateapi", identity, trusted), filepath.Join(h.dir, "access.log"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	server, err := gatewaytest.Build(h.dir, "sluice", "bench")
	if err != nil {
		b.Fatal(err)
	}
	r := gatewaytest.Run(b, server, "run", "-c", config)
	return r.Await(b, `"entrypoint":"web","address":"([^"]+)"`), [2]*gatewaytest.Process{r, h.worker}
}

func (h *hop) attach(b *testing.B, boxes control.Sandboxes) {
	dial := func(component string) *control.Client {
		c, err := app.DialControl(app.ControlOptions{Address: h.plane.Addr, ServerName: app.AteapiName, Credentials: app.ComponentDir(h.dir, component)})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = c.Close() })
		return c
	}
	admin, host := dial("admin"), dial("worker-w1")
	_, err := admin.CreateAtespace(b.Context(), "demo")
	if err != nil {
		b.Fatal(err)
	}
	ref, of := actor.Ref{Atespace: "demo", Name: "a"}, actor.Ref{Atespace: "demo", Name: "echo"}
	if _, err := admin.CreateTemplate(b.Context(), actor.Template{Ref: of, Containers: []actor.Container{{Name: "main", Image: "local:echo"}}}); err != nil {
		b.Fatal(err)
	}
	if _, err := admin.CreateActor(b.Context(), ref, of, nil); err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	attached := make(chan actor.Worker, 16)
	var hosting sync.WaitGroup
	hosting.Go(func() {
		_ = host.Host(ctx, control.HostOptions{
			Worker: actor.Worker{Name: "w1", Epoch: 1, Capacity: actor.Capacity{Actors: 2}, Place: actor.Place{
				Namespace: "ate-workers", Node: "n1", Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
			}},
			Sandboxes: boxes, Attached: func(w actor.Worker) { attached <- w },
		})
	})
	b.Cleanup(func() { stop(); hosting.Wait() })
	<-attached
	if _, _, err := admin.ResumeActor(b.Context(), ref); err != nil {
		b.Fatal(err)
	}
}

// gateway is the path of the namespace at the near end of the actor's cable.
func (h *hop) gateway(b *testing.B) string {
	all, err := filepath.Glob("/run/netns/sluice-" + h.run.String() + "-*-at")
	if err != nil || len(all) != 1 {
		b.Fatal(all, err)
	}
	return all[0]
}

// ordered passes the control plane's orders to the worker.
type ordered struct{ orders, output string }

func (o *ordered) Start(ctx context.Context, a actor.Actor, _ actor.Template, _ string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return o.order(ctx, "activate", worker.Order{Output: o.output, Spec: worker.Spec{
		Actor: worker.Actor{Ref: a.Ref.String(), UID: a.UID}, Probe: worker.Probe{Port: 80},
		Program: worker.Program{
			Path: "/app/actor", Args: []string{"as-actor"}, Env: []string{"ACTOR=" + a.Ref.String()}, User: 700001,
			Limits: fabric.Limits{Processes: 64, Memory: 256 << 20}, Mounts: []worker.Mount{{From: self, To: "/app/actor"}},
		},
	}})
}

func (o *ordered) Stop(ctx context.Context, a actor.Actor, _ actor.Op) error {
	return o.order(ctx, "terminate", worker.Actor{Ref: a.Ref.String(), UID: a.UID})
}

func (o *ordered) order(ctx context.Context, what string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", o.orders)
	}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://worker/v1/"+what, bytes.NewReader(text))
	if err != nil {
		return err
	}
	resp, err := tr.RoundTrip(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if answer, err := io.ReadAll(resp.Body); resp.StatusCode != http.StatusNoContent || err != nil {
		return fmt.Errorf("%s: %s: %s", what, resp.Status, answer)
	}
	return nil
}

// envoys starts two of them, in the place of the router and of the worker, the second one in the gateway namespace of the actor.
func (h *hop) envoys(b *testing.B, single bool) (string, [2]*gatewaytest.Process) {
	program, nsenter := gatewaytest.Peer(b, gatewaytest.PeerEnvoy), gatewaytest.Peer(b, "nsenter")
	ports := gatewaytest.FreePorts(b, 2)
	outside := fmt.Sprintf("/proc/%d/ns/net", os.Getpid())
	var all [2]*gatewaytest.Process
	for i, ends := range []bool{false, true} {
		file := filepath.Join(h.dir, fmt.Sprintf("envoy-%v.yaml", ends))
		var config bytes.Buffer
		err := h.text.Execute(&config, map[string]any{
			"Ends": ends, "Single": single, "Requests": ports[0], "Tunnels": ports[1], "Outside": outside, "Log": filepath.Join(h.dir, "envoy.log"), "RouterURI": app.RouterID, "WorkerURI": app.WorkerID("w1"),
			"Worker": h.file("worker-w1", identity, bundle), "Router": h.file("router", identity, bundle), "Trust": h.file("ateapi", identity, trusted),
		})
		if err == nil {
			err = os.WriteFile(file, config.Bytes(), 0o600)
		}
		if err != nil {
			b.Fatal(err)
		}
		command := []string{program, "-c", file, "--concurrency", "2", "--use-dynamic-base-id", "-l", "info"}
		if ends {
			command = append([]string{nsenter, "--net=" + h.gateway(b), "--"}, command...)
		}
		p := gatewaytest.Run(b, command[0], command[1:]...)
		p.Await(b, "starting main dispatch loop")
		all[i] = p
	}
	return fmt.Sprintf("127.0.0.1:%d", ports[0]), all
}

var (
	loadCount = regexp.MustCompile(`(\d+) requests in ([0-9.]+)s`)
	loadWrong = regexp.MustCompile(`Non-2xx or 3xx responses: (\d+)`)
)

// load sends requests for a time and returns how many were answered well, and in how many seconds. Envoy fails a few when it opens and
// ends a tunnel for each.
func load(b *testing.B, wrk, addr, d string) (requests int, seconds float64) {
	b.Helper()
	out, err := exec.Command(wrk, "-t1", "-c16", "-d"+d, "-H", "ate-target-actor: demo/a", "http://"+addr+"/").CombinedOutput()
	m, wrong := loadCount.FindSubmatch(out), 0
	if w := loadWrong.FindSubmatch(out); w != nil {
		wrong, _ = strconv.Atoi(string(w[1]))
	}
	if err != nil || m == nil || bytes.Contains(out, []byte("Socket errors")) {
		b.Fatalf("%v: %s", err, out)
	}
	requests, _ = strconv.Atoi(string(m[1]))
	seconds, _ = strconv.ParseFloat(string(m[2]), 64)
	if requests -= wrong; wrong*50 > requests {
		b.Fatalf("%d of %d requests failed", wrong, requests)
	}
	return requests, seconds
}

// spent is the processor time of a process up to now.
func spent(b *testing.B, p *gatewaytest.Process) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		b.Fatal(err)
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, err1 := strconv.Atoi(f[11])
	system, err2 := strconv.Atoi(f[12])
	if err1 != nil || err2 != nil {
		b.Fatal(err1, err2)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}
