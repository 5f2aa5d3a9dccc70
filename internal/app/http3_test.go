package app_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"

	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// http3Client speaks HTTP/3 to whatever certificate, over connections of its own.
func http3Client(t testing.TB, change func(*tls.Config)) *http.Client {
	cfg := &tls.Config{InsecureSkipVerify: true, ServerName: "gateway.test"}
	if change != nil {
		change(cfg)
	}
	tr := &http3.Transport{TLSClientConfig: cfg}
	t.Cleanup(func() { _ = tr.Close() })
	return &http.Client{Transport: tr, Timeout: gatewaytest.Patience}
}

// fetch is a GET, its answer and the whole body.
func fetch(c *http.Client, url string) (*http.Response, string, error) {
	resp, err := c.Get(url)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

const threeALPN = `, alpn = ["h3", "h2", "http/1.1"]`

// threeSite is a secureSite with HTTP/3, at a port that is free for both: who asks for any gets one that is for TCP.
func threeSite(t *testing.T, block, extra string) site {
	s := secureSite(t, block+threeALPN, extra)
	s.entrypoints = strings.Replace(s.entrypoints, "127.0.0.1:0", gatewaytest.FreeAddress(t), 1)
	return s
}

// TestHTTP3: an entrypoint with h3 in alpn serves it beside the others, whose answers tell where; it is the same walk, log
// and metrics.
func TestHTTP3(t *testing.T) {
	t.Parallel()
	certFile, keyFile := certificate(t, t.TempDir())
	s := threeSite(t, fmt.Sprintf("cert_file = %q, key_file = %q", certFile, keyFile), management+`
middlewares "port" {
  type = "headers"
  response_headers = { "Alt-Svc" = "h3=\":8443\"" }
}
routers "mapped" {
  rule = "PathPrefix(`+"`/mapped`"+`)"
  service = "s"
  middlewares = ["port"]
}`)
	g := gatewaytest.Start(t, s.String())
	addr := g.Addr("tls")
	_, port, _ := net.SplitHostPort(addr)
	here := fmt.Sprintf(`h3=":%s"; ma=86400`, port)
	cases := []struct {
		client   *http.Client
		protocol string
		path     string
		status   int
		altSvc   string
	}{
		{httpClient(t, func(p *http.Protocols) { p.SetHTTP1(true) }), "HTTP/1.1", "/", 200, here},
		{httpClient(t, func(p *http.Protocols) { p.SetHTTP2(true) }), "HTTP/2.0", "/", 200, here},
		{httpClient(t, func(p *http.Protocols) { p.SetHTTP2(true) }), "HTTP/2.0", "/mapped", 200, `h3=":8443"`},
		{http3Client(t, nil), "HTTP/3.0", "/", 200, ""},
	}
	for _, tc := range cases {
		resp, body, err := fetch(tc.client, "https://"+addr+tc.path)
		if err != nil {
			t.Fatalf("%s: %v", tc.protocol, err)
		}
		if resp.StatusCode != tc.status || body != "one" || resp.Proto != tc.protocol || resp.Header.Get("Alt-Svc") != tc.altSvc {
			t.Errorf("%s: %d %s %q %q", tc.protocol, resp.StatusCode, resp.Proto, body, resp.Header.Get("Alt-Svc"))
		}
		line := g.Lines.Next(t)
		if line.Text("protocol") != tc.protocol || line.Number("status") != 200 || line.Text("entrypoint") != "tls" || line.Text("outcome") != "ok" {
			t.Errorf("logged as %v", line)
		}
	}
}

// TestHTTP3Reload: HTTP/3 comes and goes with the configuration. What runs over it ends whole; the UDP port is free
// afterwards.
func TestHTTP3Reload(t *testing.T) {
	certFile, keyFile := certificate(t, t.TempDir())
	began, release := make(chan struct{}, 1), make(chan struct{})
	back := gatewaytest.NewBackend(t, "one")
	slow := slowBackend(t, began, release)
	files := fmt.Sprintf("cert_file = %q, key_file = %q", certFile, keyFile)
	at := gatewaytest.FreeAddress(t)
	text := func(more string) string {
		return site{
			entrypoints: `entrypoints "tls" { address = "` + at + `", tls { ` + files + more + ` } }`, backends: []string{back.URL},
			extra: "routers \"slow\" {\n rule = \"PathPrefix(`/slow`)\"\n service = \"slow\"\n}\nservices \"slow\" { load_balancer { servers { url = \"" + slow + "\" } } }",
		}.String()
	}
	off, on := text(""), text(threeALPN)
	g := gatewaytest.Start(t, off)
	url := "https://" + g.Addr("tls")
	two := httpClient(t, func(p *http.Protocols) { p.SetHTTP2(true) })
	told := func() bool {
		t.Helper()
		resp, _, err := fetch(two, url)
		if err != nil {
			t.Fatal(err)
		}
		return resp.Header.Get("Alt-Svc") != ""
	}
	if told() {
		t.Error("told of HTTP/3 that is not there")
	}
	free := func() bool {
		pc, err := net.ListenPacket("udp", g.Addr("tls"))
		if err == nil {
			_ = pc.Close()
		}
		return err == nil
	}
	if !free() {
		t.Fatal("the UDP port is taken without need")
	}
	g.Apply(on)
	if !told() {
		t.Error("not told of HTTP/3")
	}
	c := http3Client(t, nil)
	answered := make(chan string, 1)
	go func() {
		_, body, err := fetch(c, url+"/slow")
		answered <- fmt.Sprint(body, err)
	}()
	<-began
	g.Apply(off)
	if told() {
		t.Error("told of HTTP/3 that has gone")
	}
	var refused *quic.TransportError
	if _, _, err := fetch(http3Client(t, nil), url); !errors.As(err, &refused) || refused.ErrorCode != quic.ConnectionRefused {
		t.Errorf("a new connection: %v", err)
	}
	g.Apply(on) // the socket is still there, and is taken again
	idle := http3Client(t, nil)
	if _, body, err := fetch(idle, url); err != nil || body != "one" {
		t.Errorf("again: %q %v", body, err)
	}
	close(release)
	if got := <-answered; got != "slow<nil>" {
		t.Errorf("the request that ran: %s", got)
	}
	g.Apply(off)
	if _, body, err := fetch(idle, url); err != nil || body != "one" { // its connection may be used once more
		t.Errorf("behind: %q %v", body, err)
	}
	gatewaytest.Until(t, "the UDP port is given back", free)
	g.Apply(on)
	if _, body, err := fetch(http3Client(t, nil), url); err != nil || body != "one" {
		t.Errorf("at last: %q %v", body, err)
	}
}

// slowBackend answers "slow" once release is closed.
func slowBackend(t *testing.T, began chan<- struct{}, release <-chan struct{}) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		began <- struct{}{}
		<-release
		_, _ = io.WriteString(w, "slow")
	})}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return "http://" + l.Addr().String()
}

// TestHTTP3Occupied: a UDP port that somebody else has is an error that names it, and leaves nothing bound.
func TestHTTP3Occupied(t *testing.T) {
	certFile, keyFile := certificate(t, t.TempDir())
	taken, err := net.ListenPacket("udp", gatewaytest.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	text := strings.Replace(secureSite(t, fmt.Sprintf("cert_file = %q, key_file = %q", certFile, keyFile)+threeALPN, "").String(),
		"127.0.0.1:0", taken.LocalAddr().String(), 1)
	_, err = gatewaytest.TryStart(t, text)
	if err == nil || !strings.Contains(err.Error(), "udp") || !strings.Contains(err.Error(), "in use") {
		t.Errorf("started: %v", err)
	}
	l, err := net.Listen("tcp", taken.LocalAddr().String())
	if err != nil {
		t.Fatalf("the TCP port is still bound: %v", err)
	}
	_ = l.Close()
}

// TestHTTP3TLS: certificates, the policy towards clients and the names that are served are those of TLS over TCP, new
// files and reloads included.
func TestHTTP3TLS(t *testing.T) {
	dir := t.TempDir()
	certFile, keyFile := certificate(t, dir)
	caFile := filepath.Join(dir, "clients.pem")
	mine := clientCertificate(t, caFile, "agent.test")
	block := fmt.Sprintf("cert_file = %q, key_file = %q, client_ca_file = %q, strict_sni = true, client_auth = ", certFile, keyFile, caFile)
	s := threeSite(t, block+`"request"`, "")
	g := gatewaytest.Start(t, s.String())
	url := "https://" + g.Addr("tls")
	get := func(change func(*tls.Config)) (serial string, err error) {
		resp, _, err := fetch(http3Client(t, change), url)
		if err != nil {
			return "", err
		}
		return resp.TLS.PeerCertificates[0].SerialNumber.String(), nil
	}
	known := func(c *tls.Config) { c.Certificates = []tls.Certificate{mine} }
	first, err := get(known)
	if err != nil {
		t.Fatal(err)
	}
	if line := g.Lines.Next(t); line.Text("client_identity") != "agent.test" {
		t.Errorf("%v", line)
	}
	if _, err := get(nil); err != nil {
		t.Error(err)
	}
	if line := g.Lines.Next(t); line.Text("client_identity") != "" {
		t.Errorf("%v", line)
	}
	if _, err := get(func(c *tls.Config) { c.ServerName = "other.test" }); err == nil {
		t.Error("served under a name that is not its own")
	}
	certificate(t, dir)
	g.Apply(strings.Replace(s.String(), `"request"`, `"require"`, 1))
	if _, err := get(nil); err == nil {
		t.Error("served without a certificate")
	}
	second, err := get(known)
	if err != nil || second == first {
		t.Errorf("%v: %s behind %s", err, second, first)
	}
	foreign := clientCertificate(t, filepath.Join(dir, "others.pem"), "agent.test")
	if _, err := get(func(c *tls.Config) { c.Certificates = []tls.Certificate{foreign} }); err == nil {
		t.Error("served with a certificate of somebody else")
	}
}

// TestHTTP3Connections: connections of QUIC are among those that max_connections counts.
func TestHTTP3Connections(t *testing.T) {
	certFile, keyFile := certificate(t, t.TempDir())
	s := threeSite(t, fmt.Sprintf("cert_file = %q, key_file = %q", certFile, keyFile), "")
	g := gatewaytest.Start(t, strings.Replace(s.String(), `, tls {`, `, max_connections = 3, tls {`, 1))
	url := "https://" + g.Addr("tls")
	for i := range 3 {
		if _, _, err := fetch(http3Client(t, nil), url); err != nil {
			t.Fatalf("%d: %v", i, err)
		}
	}
	if _, _, err := fetch(http3Client(t, nil), url); err == nil {
		t.Error("one too many was served")
	}
	if _, _, err := fetch(httpClient(t, func(p *http.Protocols) { p.SetHTTP2(true) }), url); err == nil {
		t.Error("one too many was served over TCP")
	}
}

// TestHTTP3Shutdown: what runs ends whole, and then the process.
func TestHTTP3Shutdown(t *testing.T) {
	certFile, keyFile := certificate(t, t.TempDir())
	began, release := make(chan struct{}, 1), make(chan struct{})
	s := threeSite(t, fmt.Sprintf("cert_file = %q, key_file = %q", certFile, keyFile), "")
	s.backends = []string{slowBackend(t, began, release)}
	g := gatewaytest.Start(t, s.String())
	url := "https://" + g.Addr("tls")
	c := http3Client(t, nil)
	answered := make(chan string, 1)
	go func() {
		_, body, err := fetch(c, url)
		answered <- fmt.Sprint(body, err)
	}()
	<-began
	stopped := make(chan struct{})
	go func() { g.Stop(); close(stopped) }()
	gatewaytest.Until(t, "it stops", func() bool { return g.State() != "running" })
	close(release)
	if got := <-answered; got != "slow<nil>" {
		t.Error(got)
	}
	<-stopped
}

// TestHTTP3Upgrade: another process takes the UDP socket over. What runs over HTTP/3 ends whole in the old one, to which its
// packets are passed back; its connection may ask once more; and new connections are served by the new process.
func TestHTTP3Upgrade(t *testing.T) {
	t.Parallel()
	dir := installed(t, "v1")
	certFile, keyFile := certificate(t, dir)
	began, release := make(chan struct{}, 1), make(chan struct{})
	s := threeSite(t, fmt.Sprintf("cert_file = %q, key_file = %q", certFile, keyFile), "")
	s.extra = "routers \"slow\" {\n rule = \"PathPrefix(`/slow`)\"\n service = \"slow\"\n}\nservices \"slow\" { load_balancer { servers { url = \"" +
		slowBackend(t, began, release) + "\" } } }"
	old := gatewaytest.Run(t, filepath.Join(dir, "sluice"), "-c", configured(t, dir, s), "--log-format", "json")
	url := "https://" + old.Await(t, `"listening","entrypoint":"tls","address":"([^"]+)"`)
	c := http3Client(t, nil)
	answered := make(chan string, 1)
	go func() {
		_, body, err := fetch(c, url+"/slow")
		answered <- fmt.Sprint(body, err)
	}()
	<-began
	old.Signal(t, syscall.SIGUSR2)
	pid, err := strconv.Atoi(old.Await(t, `"the new binary has taken over","pid":([0-9]+)`))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(pid, syscall.SIGTERM)
		gatewaytest.Until(t, "the new process has ended", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
	})
	for range 20 { // none of them is lost between the two
		if _, body, err := fetch(http3Client(t, nil), url); err != nil || body != "one" {
			t.Fatalf("the new process: %q %v", body, err)
		}
	}
	if _, body, err := fetch(c, url); err != nil || body != "one" {
		t.Errorf("once more on the old connection: %q %v", body, err)
	}
	close(release)
	if got := <-answered; got != "slow<nil>" {
		t.Errorf("the request that ran: %s", got)
	}
	if code, err := old.Ended(gatewaytest.Patience); err != nil || code != 0 {
		t.Errorf("the old process: %d %v\n%s", code, err, old.Output())
	}
	if _, body, err := fetch(http3Client(t, nil), url); err != nil || body != "one" {
		t.Errorf("afterwards: %q %v", body, err)
	}
}
