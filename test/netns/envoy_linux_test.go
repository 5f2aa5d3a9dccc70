package netns_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"text/template"
	"time"

	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// envoy is what testdata/envoy.yaml is filled in with.
type envoy struct {
	In, Pass map[string]int // cluster to port
	Out      map[string]int // protocol to port
	Clusters []cluster
	Gateway  string // files
	Actors   string
	Workers  string
	Log      string
	Worker   int
	Origin   int
}

// cluster is a way of Envoy to the worker: with whose certificate, and which one it wants of the worker.
type cluster struct{ Name, Protocol, Own, Pin string }

// start runs Envoy until the test ends.
func (e *envoy) start(s *site) {
	s.t.Helper()
	program := gatewaytest.Peer(s.t, gatewaytest.PeerEnvoy)
	text, err := template.ParseFiles(filepath.Join("testdata", "envoy.yaml"))
	if err != nil {
		s.t.Fatal(err)
	}
	file, err := os.Create(s.path("envoy.yaml"))
	if err != nil {
		s.t.Fatal(err)
	}
	err = text.Execute(file, e)
	if cerr := file.Close(); err != nil || cerr != nil {
		s.t.Fatal(err, cerr)
	}
	p := gatewaytest.Run(s.t, program, "-c", file.Name(), "--concurrency", "1", "--use-dynamic-base-id", "--file-flush-interval-msec", "50", "-l", "info")
	p.Await(s.t, "starting main dispatch loop")
}

// newEnvoySite is a site with Envoy in the place of its router and its egress gateway, and with a worker and the actor demo/a. Tunnels out
// are spoken in a protocol and lead to an origin.
func newEnvoySite(t *testing.T, protocol, origin string) (*running, *envoy) {
	t.Helper()
	gatewaytest.Peer(t, gatewaytest.PeerEnvoy)
	s := newSite(t)
	s.mount("stranger", cert.WorkloadAuthority, cert.WorkloadLeaf(strings.Replace(routerURI, "router", "egress", 1), false))
	ports := gatewaytest.FreePorts(t, 7)
	s.gateway = fmt.Sprintf("localhost:%d", ports[6])
	r := s.start("one")
	t.Cleanup(func() { r.Stop(t) })
	own := func(component string) string { return s.hub.Path(component, cert.CredentialFile) }
	e := &envoy{
		In:   map[string]int{"h2": ports[0], "h1": ports[1]},
		Pass: map[string]int{"h2": ports[2], "h1": ports[3], "stranger": ports[4], "elsewhere": ports[5]},
		Out:  map[string]int{protocol: ports[6]},
		Clusters: []cluster{
			{"h2", "h2", own("router"), workerURI},
			{"h1", "http/1.1", own("router"), workerURI},
			{"stranger", "h2", own("stranger"), workerURI},
			{"elsewhere", "h2", own("router"), workerURI + "2"},
		},
		Gateway: own("gateway"), Actors: s.hub.Path("actors", cert.TrustFile), Workers: s.hub.Path("router", cert.TrustFile), Log: s.path("envoy.log"),
		Worker: portOf(t, r.addr), Origin: portOf(t, origin),
	}
	e.start(s)
	r.activate("demo/a", 700001, false)
	return r, e
}

func portOf(t *testing.T, addr string) int {
	t.Helper()
	a, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return a.Port
}

func dial(t *testing.T, port int) *net.TCPConn {
	t.Helper()
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	t.Cleanup(func() { _ = c.Close() })
	return c.(*net.TCPConn)
}

// A real Envoy is the router: it carries what it gets to an actor on the worker, in both protocols and with half-close, learns where
// the actor is not, and is turned away unless it is exactly who may come.
func TestEnvoyTunnelsToTheWorker(t *testing.T) {
	r, e := newEnvoySite(t, "h2", "127.0.0.1:1")
	for cluster, port := range e.In {
		t.Run("bytes "+cluster, func(t *testing.T) {
			for range 5 {
				c := dial(t, port)
				sent := strings.Repeat("through two proxies ", 50_000)
				go func() {
					_, _ = io.WriteString(c, sent)
					if cluster != "h1" { // where Envoy takes the end of one direction for that of both
						_ = c.CloseWrite()
					}
				}()
				got := make([]byte, len(sent))
				if n, err := io.ReadFull(c, got); err != nil || string(got) != sent {
					t.Fatalf("%d bytes, %v\n%s", n, err, r.Output())
				}
				if cluster == "h1" {
					continue
				}
				if rest, err := io.ReadAll(c); string(rest) != farewell || err != nil { // which the actor says once it has seen the end
					t.Fatalf("%q at the end, %v", rest, err)
				}
			}
		})
	}
	for _, tc := range []struct {
		name, cluster, authority, target string
		status                           int
		stale                            bool
	}{
		{"active h2", "h2", "any.example:80", "demo/a", 200, false},
		{"active h1", "h1", "any.example:80", "demo/a", 200, false},
		{"inactive h2", "h2", "any.example:80", "demo/b", 421, true},
		{"inactive h1", "h1", "any.example:80", "demo/b", 421, true},
		{"no target", "h2", "any.example:80", "", 421, true},
		{"a port that nobody listens on", "h2", "any.example:81", "demo/a", 502, false},
		{"another client", "stranger", "any.example:80", "demo/a", 503, false},
		{"another worker", "elsewhere", "any.example:80", "demo/a", 503, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := dial(t, e.Pass[tc.cluster])
			target := ""
			if tc.target != "" {
				target = "ate-target-actor: " + tc.target + "\r\n"
			}
			_, _ = fmt.Fprintf(c, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n%[2]s\r\n", tc.authority, target)
			in := bufio.NewReader(c)
			got, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
			if err != nil {
				t.Fatal(err)
			}
			if got.StatusCode != tc.status || (got.Header.Get("X-Ate-Assignment-Stale") == "true") != tc.stale {
				t.Fatalf("%s %v\n%s", got.Status, got.Header, r.Output())
			}
			if tc.status != http.StatusOK {
				return
			}
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
			answer, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(answer.Body); string(body) != "demo/a" || err != nil {
				t.Errorf("%q, %v", body, err)
			}
		})
	}
	r.Await(t, "refused a tunnel connection") // which the worker says behind what it does
	r.order("suspend", actorOf("demo/a"))
	c := dial(t, e.Pass["h2"])
	_, _ = io.WriteString(c, "CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\nate-target-actor: demo/a\r\n\r\n")
	if got, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodConnect}); err != nil || got.StatusCode != 421 {
		t.Errorf("a suspended actor: %v %v", got, err)
	}
	r.order("terminate", actorOf("demo/a")) // which otherwise stays, for any worker of the run
}

// A real Envoy is the egress gateway: what an actor dials comes to it as a CONNECT for the address, with the actor's identity, and from
// there to the origin, in both protocols; with HTTP/2 also when each side ends for itself.
func TestWorkerTunnelsToEnvoy(t *testing.T) {
	for protocol, logged := range map[string]string{"h2": "HTTP/2", "http/1.1": "HTTP/1.1"} {
		t.Run(logged, func(t *testing.T) {
			r, e := newEnvoySite(t, protocol, replies(t, protocol == "h2"))
			for i := range 5 {
				to := fmt.Sprintf("203.0.113.7:%d", 8443+i)
				query := url.Values{"to": {to}}
				want := "the origin got hello<nil>"
				if protocol == "h2" {
					query.Set("end", "1")
					want = "the origin got all of hello<nil>"
				}
				if got, err := r.get("demo/a", "/dial?"+query.Encode()); err != nil || got != want {
					t.Fatalf("%q, %v, want %q\n%s", got, err, want, r.Output())
				}
				line := fmt.Sprintf("%s %sdemo/a %s 200\n", logged, actorURI, to)
				gatewaytest.Until(t, "Envoy has logged the tunnel", func() bool {
					text, _ := os.ReadFile(e.Log)
					return strings.Contains(string(text), line)
				})
			}
		})
	}
}

// replies is an origin that says what it has got; toEnd, once it has got it to the end.
func replies(t *testing.T, toEnd bool) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer func() { _ = c.Close() }()
				_ = c.SetDeadline(time.Now().Add(20 * time.Second))
				b := make([]byte, 5)
				if _, err := io.ReadFull(c, b); err != nil {
					return
				}
				if !toEnd {
					_, _ = fmt.Fprintf(c, "the origin got %s", b)
				} else if _, err := c.Read(make([]byte, 1)); err == io.EOF {
					_, _ = fmt.Fprintf(c, "the origin got all of %s", b)
				}
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); serving.Wait() })
	return l.Addr().String()
}
