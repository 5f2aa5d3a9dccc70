package app_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sluice-proxy/sluice/internal/app"
	"github.com/sluice-proxy/sluice/internal/gatewaytest"
)

// TestReloadRefused: each mistake is named, all of one file together, and what runs goes on untouched (KF-CFG-08).
func TestReloadRefused(t *testing.T) {
	b := gatewaytest.NewBackend(t, "good")
	g := gatewaytest.Start(t, site{backends: []string{b.URL}}.String())
	web := g.Addr("web")
	c := gatewaytest.Dial(t, web)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	ok := site{backends: []string{b.URL}}
	with := func(extra string) string { s := ok; s.extra = extra; return s.String() }
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"syntax", "entrypoints {", []string{"configuration:1:"}},
		{"unknown key", with(`entrypoints "b" { adress = "127.0.0.1:0" }`), []string{"adress"}},
		{"missing service", with("routers \"q\" {\n rule = \"Path(`/q`)\"\n service = \"nobody\"\n}"), []string{"nobody"}},
		{"missing middleware", with("routers \"q\" {\n rule = \"Path(`/q`)\"\n service = \"s\"\n middlewares = [\"nothing\"]\n}"), []string{"nothing"}},
		{"bad rule", with("routers \"q\" {\n rule = \"Path(`/q`\"\n service = \"s\"\n}"), []string{"rule"}},
		{"bad CIDR", with(`entrypoints "b" { address = "127.0.0.1:0", forwarded { trusted_ips = ["10.0.0.0/99"] } }`), []string{"trusted_ips"}},
		{"negative duration", with(`entrypoints "b" { address = "127.0.0.1:0", header_timeout = "-3s" }`), []string{"header_timeout"}},
		{"duplicate listener", with(`entrypoints "a1" { address = "127.0.0.1:7001" }` + "\n" + `entrypoints "a2" { address = "127.0.0.1:7001" }`), []string{`"a2"`, `"a1"`, "both listen"}},
		{"no such certificate", with(`entrypoints "b" { address = "127.0.0.1:0", tls { cert_file = "/none/a.pem", key_file = "/none/a.key" } }`), []string{"cert_file", "key_file", "does not exist"}},
		{"occupied port", with(`entrypoints "b" { address = "` + taken.Addr().String() + `" }`), []string{"address already in use"}},
		{
			"two at once", with(`entrypoints "b" { address = "127.0.0.1:0", header_timeout = "-3s", colour = 3 }` + "\nrouters \"q\" {\n rule = \"Path(`/q`)\"\n service = \"nobody\"\n}"),
			[]string{"colour", "header_timeout"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := g.Config()
			err := g.ReloadText(t.Context(), tc.text)
			if err == nil {
				t.Fatal("accepted")
			}
			text := err.Error()
			var at *app.ConfigError
			if errors.As(err, &at) {
				for _, d := range at.Diagnostics {
					text += fmt.Sprintf("\n%s:%d: %s", d.Span.File, d.Span.Start.Line, d.Message)
				}
			}
			for _, w := range tc.want {
				if !strings.Contains(text, w) {
					t.Errorf("the error lacks %q: %s", w, text)
				}
			}
			if g.Config() != before || g.Addr("web") != web || g.State() != "running" || len(g.Bound()) != 1 {
				t.Errorf("something has changed: %v %v", g.Bound(), g.State())
			}
			if _, body := c.Get("/"); body != "good" {
				t.Errorf("the running configuration answers %q", body)
			}
			if r := g.Residue(); r.Generations != 1 || r.Backends != 1 || r.Pools != 1 {
				t.Errorf("the refused configuration holds on: %+v", r)
			}
		})
	}
}

// TestReloadReachesIdleConnections: the next request on an open connection gets the new configuration (KF-CFG-10).
func TestReloadReachesIdleConnections(t *testing.T) {
	b := gatewaytest.NewBackend(t, "one")
	s := site{backends: []string{b.URL}}
	g := gatewaytest.Start(t, s.String())
	c := gatewaytest.Dial(t, g.Addr("web"))
	h2 := httpClient(t, func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) })
	get := func() int {
		resp, err := h2.Get("http://" + g.Addr("web") + "/a")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	if resp, _ := c.Get("/a"); resp.StatusCode != 200 || get() != 200 {
		t.Fatal("before the reload")
	}
	s.rule = "Path(`/b`)"
	g.Apply(s.String())
	if resp, _ := c.Get("/a"); resp.StatusCode != 404 || get() != 404 {
		t.Fatal("the removed route still serves")
	}
	if resp, _ := c.Get("/b"); resp.StatusCode != 200 {
		t.Fatal("the new route does not serve")
	}
}

// TestReloadUnderLoad: connections, streams, uploads and upgrades live through a hundred reloads of all kinds without a
// failure (KF-CFG-07), and nothing of the old configurations is left afterwards.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	a, b := gatewaytest.NewBackend(t, "a"), gatewaytest.NewBackend(t, "b")
	dir := t.TempDir()
	certFile, keyFile := certificate(t, dir)
	const reloads, clients = 100, 64
	text := func(n int) string {
		s := site{
			entrypoints: `entrypoints "web" { address = "127.0.0.1:0" }
entrypoints "tls" { address = "127.0.0.1:0", tls { cert_file = "` + certFile + `", key_file = "` + keyFile + `" } }`,
			service: fmt.Sprintf("    servers {\n url = %q\n weight = %d\n }\n    servers {\n url = %q\n weight = %d\n }\n", a.URL, n%3+1, b.URL, (n+1)%3+1),
			extra:   `middlewares "m" { type = "headers", response_headers = { "X-Generation" = "` + fmt.Sprint(n) + `" } }` + "\n",
		}
		s.middlewares = `"m"`
		if n%2 == 1 {
			s.entrypoints += "\n" + `entrypoints "extra" { address = "127.0.0.1:0" }`
			s.extra += fmt.Sprintf("routers \"q%d\" {\n rule = \"Path(`/q%d`)\"\n service = \"s\"\n}\n", n, n)
		}
		return s.String()
	}
	g := gatewaytest.Start(t, text(0))
	web := g.Addr("web")

	sse := gatewaytest.Dial(t, web)
	sse.Send("GET /sse HTTP/1.1\r\nHost: x\r\n\r\n")
	stream := sse.Response()
	upload := gatewaytest.Dial(t, web)
	upload.Send(fmt.Sprintf("POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", reloads))
	ws := gatewaytest.Dial(t, web)
	ws.Send("GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	if resp := ws.Response(); resp.StatusCode != 101 {
		t.Fatalf("upgrade: %v", resp.Status)
	}

	var stop atomic.Bool
	var served atomic.Int64
	var load sync.WaitGroup
	for i := range clients {
		c := gatewaytest.Dial(t, web)
		load.Go(func() {
			for !stop.Load() {
				resp, body, err := c.TryGet(fmt.Sprintf("/client/%d", i))
				if err != nil || resp.StatusCode != 200 || body != "a" && body != "b" || resp.Close {
					t.Errorf("client %d: %v %q %v", i, resp, body, err)
					return
				}
				served.Add(1)
			}
		})
	}
	secure := httpClient(t, func(p *http.Protocols) { p.SetHTTP2(true) })
	load.Go(func() {
		for !stop.Load() {
			resp, err := secure.Get("https://" + g.Addr("tls") + "/")
			if err != nil {
				t.Errorf("over TLS: %v", err)
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	})
	echo := make([]byte, 1)
	for n := 1; n <= reloads; n++ {
		if n%10 == 0 {
			certificate(t, dir)
		}
		g.Apply(text(n))
		upload.Send("x")
		ws.Send("y")
		if _, err := io.ReadFull(ws.R, echo); err != nil {
			t.Fatalf("upgraded connection, reload %d: %v", n, err)
		}
		a.Tick()
		b.Tick()
	}
	stop.Store(true)
	load.Wait()
	if n := served.Load(); n < reloads {
		t.Errorf("only %d requests", n)
	}
	if resp := upload.Response(); resp.StatusCode != 200 {
		t.Errorf("upload: %v", resp.Status)
	} else if body, _ := io.ReadAll(resp.Body); string(body) != fmt.Sprint(reloads) {
		t.Errorf("the upload arrived as %s bytes", body)
	}
	ws.Close()
	a.Finish()
	b.Finish()
	events, err := io.ReadAll(stream.Body)
	if err != nil || strings.Count(string(events), "data:") < 2 {
		t.Errorf("stream: %d events, %v", strings.Count(string(events), "data:"), err)
	}
	gatewaytest.Until(t, "old generations are gone", func() bool { return g.Residue().Generations == 1 })
	if r := g.Residue(); r.Backends != 2 || r.Pools != 2 {
		t.Errorf("%+v", r)
	}
}

// TestRemovedEntrypoint: an open connection of a removed entrypoint still gets its last request served by the routes
// it was opened under, and the generation is freed once its time is over.
func TestRemovedEntrypoint(t *testing.T) {
	t.Parallel()
	b := gatewaytest.NewBackend(t, "one")
	both := site{
		entrypoints: `entrypoints "web" { address = "127.0.0.1:0" }` + "\n" + `entrypoints "old" { address = "127.0.0.1:0" }`,
		backends:    []string{b.URL}, extra: "shutdown_timeout_secs = 3600\n",
	}
	g := gatewaytest.Start(t, both.String())
	idle := gatewaytest.Dial(t, g.Addr("old"))
	idle.Get("/")
	only := both
	only.entrypoints = `entrypoints "web" { address = "127.0.0.1:0" }`
	g.Apply(only.String())
	if _, still := g.Bound()["old"]; still {
		t.Fatal("still bound")
	}
	if n := g.Residue().Generations; n != 2 {
		t.Errorf("%d generations while the old one is needed", n)
	}
	resp, body := idle.Get("/last")
	if resp.StatusCode != 200 || body != "one" || !resp.Close {
		t.Fatalf("the last request got %v %q, close %v", resp.Status, body, resp.Close)
	}
	idle.Closed()
	gatewaytest.Until(t, "the kept generation is freed", func() bool { return g.Residue().Generations == 1 })
	// The name may come back, with a server of its own.
	g.Apply(both.String())
	if _, body := gatewaytest.Dial(t, g.Addr("old")).Get("/"); body != "one" {
		t.Errorf("the entrypoint that came back answers %q", body)
	}
}

// TestStateSurvivesReload: buckets, counts and pooled connections are the process's.
func TestStateSurvivesReload(t *testing.T) {
	b := gatewaytest.NewBackend(t, "one")
	s := site{
		backends: []string{b.URL}, middlewares: `"limit"`,
		extra: `middlewares "limit" { type = "rate-limit", rate = 0, burst = 3 }` + "\n", // nothing drips in, however long it takes
	}
	g := gatewaytest.Start(t, s.String())
	c := gatewaytest.Dial(t, g.Addr("web"))
	c.Get("/")
	local := b.Last.Load().RemoteAddr
	c.Get("/")
	s.rule = "PathPrefix(`/`) && Method(`GET`)"
	g.Apply(s.String())
	c.Get("/")
	if b.Last.Load().RemoteAddr != local {
		t.Error("the pooled connection was given up")
	}
	if resp, _ := c.Get("/"); resp.StatusCode != 429 {
		t.Errorf("the bucket was filled up again: %v", resp.Status)
	}
}

// TestWatching: files are followed through symbolic links that are swapped and slow writers (KF-CFG-01, KF-CFG-02).
func TestWatching(t *testing.T) {
	b := gatewaytest.NewBackend(t, "one")
	text := func(path string) string {
		return site{backends: []string{b.URL}, rule: "Path(`" + path + "`)", extra: "providers { file { watch = true } }\n"}.String()
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	for _, v := range []string{"v1", "v2", "v3"} {
		if err := os.Mkdir(filepath.Join(dir, v), 0o700); err != nil {
			t.Fatal(err)
		}
		write(filepath.Join(dir, v, "gateway.acl"), text("/"+v))
	}
	link := func(to string) {
		t.Helper()
		tmp := filepath.Join(dir, "..tmp")
		if err := errors.Join(os.Symlink(to, tmp), os.Rename(tmp, filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	link("v1")
	main := filepath.Join(dir, "gateway.acl")
	if err := os.Symlink(filepath.Join("..data", "gateway.acl"), main); err != nil {
		t.Fatal(err)
	}
	g := gatewaytest.Start(t, "", gatewaytest.FromFile(main))
	c := gatewaytest.Dial(t, g.Addr("web"))
	serves := func(path string) func() bool {
		return func() bool { resp, _ := c.Get(path); return resp.StatusCode == 200 }
	}
	if !serves("/v1")() {
		t.Fatal("v1 is not served")
	}
	for _, v := range []string{"v2", "v3"} {
		link(v)
		gatewaytest.Until(t, v+" is served", serves("/"+v))
	}
	f, err := os.Create(filepath.Join(dir, "v3", "gateway.acl"))
	if err != nil {
		t.Fatal(err)
	}
	whole := text("/slow")
	for i := range 10 {
		if _, err := f.WriteString(whole[i*len(whole)/10 : (i+1)*len(whole)/10]); err != nil {
			t.Fatal(err)
		}
		if !serves("/v3")() {
			t.Fatalf("after chunk %d the old configuration does not serve", i)
		}
	}
	f.Close()
	gatewaytest.Until(t, "the slowly written file is served", serves("/slow"))
	write(filepath.Join(dir, "v3", "gateway.acl"), "entrypoints {")
	gatewaytest.Until(t, "the broken file is complained of", func() bool {
		return strings.Contains(g.Process.String(), "configuration refused")
	})
	if !serves("/slow")() {
		t.Error("a broken file has taken the route away")
	}
	write(filepath.Join(dir, "v3", "gateway.acl"), " \n")
	gatewaytest.Until(t, "the emptied file is complained of", func() bool {
		return strings.Contains(g.Process.String(), "empty, which would close everything")
	})
	if !serves("/slow")() {
		t.Error("an emptied file has taken the route away")
	}
	if err := g.Reload(t.Context()); err == nil || !strings.Contains(err.Error(), main) {
		t.Errorf("an emptied file is put into force by a reload: %v", err)
	}
	write(filepath.Join(dir, "v3", "gateway.acl"), text("/again"))
	gatewaytest.Until(t, "the file that was written again is served", serves("/again"))
}
