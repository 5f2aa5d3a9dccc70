package gateway_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-proxy/sluice/gateway"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// text forwards one path to a backend, without an access log.
func text(backend, path string) string {
	return fmt.Sprintf("entrypoints \"web\" { address = \"127.0.0.1:0\" }\nrouters \"r\" {\n rule = \"Path(`%s`)\"\n service = \"s\"\n}\n"+
		"services \"s\" {\n load_balancer {\n strategy = \"round-robin\"\n servers { url = %q }\n }\n}\nobservability { access_log_enabled = false }\n", path, backend)
}

// hanging gets a value for each request that is left without an answer.
var hanging = make(chan struct{}, 1)

func backend(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hang" {
			hanging <- struct{}{}
			<-r.Context().Done()
			return
		}
		fmt.Fprint(w, "hello")
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

func TestNewRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		o    gateway.Options
		want []string
	}{
		{"neither", gateway.Options{}, []string{"ConfigFile"}},
		{"both", gateway.Options{ConfigFile: "a", Config: "b"}, []string{"ConfigFile"}},
		{"mistakes", gateway.Options{Config: "entrypoints \"web\" { adress = \":1\" }\nrouters \"r\" { rule = \"Path(\" }"}, []string{"adress", "rule"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g, err := gateway.New(tc.o)
			if err == nil || g != nil {
				t.Fatal("accepted")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("lacks %q: %v", w, err)
				}
			}
		})
	}
}

func TestLifecycle(t *testing.T) {
	url := backend(t)
	g, err := gateway.New(gateway.Options{Config: text(url, "/a")})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for name, err := range map[string]error{"Reload": g.Reload(ctx), "ReloadText": g.ReloadText(ctx, ""), "Shutdown": g.Shutdown(ctx), "Wait": g.Wait()} {
		if !errors.Is(err, gateway.ErrNotStarted) {
			t.Errorf("%s before Start: %v", name, err)
		}
	}
	if g.Addr("web") != "" {
		t.Error("an address before Start")
	}
	if err := g.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if err := g.Start(ctx); !errors.Is(err, gateway.ErrStarted) {
		t.Errorf("second Start: %v", err)
	}
	base := "http://" + g.Addr("web")
	if code, body := get(t, base+"/a"); code != 200 || body != "hello" {
		t.Errorf("%d %q", code, body)
	}
	if err := g.ReloadText(ctx, "entrypoints {"); err == nil {
		t.Error("a broken text was accepted")
	}
	if err := g.ReloadText(ctx, text(url, "/b")); err != nil {
		t.Error(err)
	}
	if err := g.Reload(ctx); err != nil { // applies the text that is in force
		t.Error(err)
	}
	if code, _ := get(t, base+"/b"); code != 200 {
		t.Errorf("after the reload: %d", code)
	}
	waited := make(chan error, 1)
	go func() { waited <- g.Wait() }()
	if err := g.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if err := <-waited; err != nil {
		t.Errorf("Wait: %v", err)
	}
	if err := g.Shutdown(ctx); err != nil {
		t.Errorf("second Shutdown: %v", err)
	}
	if g.Addr("web") != "" {
		t.Errorf("an address after the end: %s", g.Addr("web"))
	}
}

// TestStartAgain: a start that failed may be tried again.
func TestStartAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gateway.acl")
	g, err := gateway.New(gateway.Options{ConfigFile: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("without its file: %v", err)
	}
	if err := os.WriteFile(path, []byte(text(backend(t), "/a")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if code, _ := get(t, "http://"+g.Addr("web")+"/a"); code != 200 {
		t.Errorf("%d", code)
	}
	if err := g.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestShutdownGivenUp: the end of Shutdown's context ends what is still open.
func TestShutdownGivenUp(t *testing.T) {
	g, err := gateway.New(gateway.Options{Config: text(backend(t), "/hang") + "shutdown_timeout_secs = 3600\n"})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		resp, err := http.Get("http://" + g.Addr("web") + "/hang")
		if err == nil {
			resp.Body.Close()
		}
		answered <- err
	}()
	<-hanging
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	began := time.Now()
	if err := g.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("took %v", d)
	}
	if err := <-answered; err == nil {
		t.Error("the request that was cut off looks answered")
	}
	http.DefaultClient.CloseIdleConnections()
}
