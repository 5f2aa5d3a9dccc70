package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-proxy/sluice/internal/worker"
)

// ordered is a worker that is told what to do on a socket.
type ordered struct {
	*host
	client *http.Client
	stop   func() // the orders
}

func newOrdered(t *testing.T) *ordered {
	t.Helper()
	r := newRun(t)
	orders := worker.NewOrders("gateway.test:443")
	o := &ordered{host: newHost(t, r, func(o *worker.Options) { o.Exited = orders.Exited })}
	path := filepath.Join(t.TempDir(), "orders")
	l, err := worker.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket has mode %v (%v)", info.Mode(), err)
	}
	if _, err := worker.Listen(path); err == nil {
		t.Error("a socket in use was replaced")
	}
	o.client = &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := orders.Serve(ctx, l, o.Worker); err != nil {
			t.Error(err)
		}
	})
	o.stop = stop
	t.Cleanup(func() { stop(); wg.Wait() })
	return o
}

// ask gives an order and returns the status with the answer.
func (o *ordered) ask(method, path string, body any) (int, string) {
	o.t.Helper()
	text, err := json.Marshal(body)
	if s, ok := body.(string); ok {
		text = []byte(s)
	}
	if err != nil {
		o.t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(within(o.t, patience), method, "http://worker"+path, bytes.NewReader(text))
	if err != nil {
		o.t.Fatal(err)
	}
	response, err := o.client.Do(request)
	if err != nil {
		o.t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		o.t.Fatal(err)
	}
	return response.StatusCode, strings.TrimSpace(string(answer))
}

func TestOrders(t *testing.T) {
	o := newOrdered(t)
	s := worker.Order{Spec: o.spec("demo/a"), Output: filepath.Join(t.TempDir(), "log")}
	bad := s
	bad.Program.User = 0
	frozen := s
	frozen.Thaw = true
	hasty := s
	hasty.Probe = worker.Probe{Port: 81, Seconds: 1}
	for _, step := range []struct {
		name, method, path string
		body               any
		status             int
		want               string
	}{
		{"no JSON", "POST", "/v1/activate", "{", 400, `"code":"bad_order"`},
		{"two orders in one", "POST", "/v1/terminate", `{"UID":"a"}{"UID":"b"}`, 400, "more than one"},
		{"a key that is not known", "POST", "/v1/activate", `{"Ref":"demo/a","Sudo":true}`, 400, `unknown field`},
		{"too much", "POST", "/v1/activate", `{"Ref":"` + strings.Repeat("a", 1<<20) + `"}`, 400, `too large`},
		{"a program as root", "POST", "/v1/activate", bad, 400, `user 0`},
		{"no actor", "POST", "/v1/activate", worker.Order{Spec: worker.Spec{Program: s.Program}}, 400, `not an actor`},
		{"an output that is anywhere", "POST", "/v1/activate", worker.Order{Spec: s.Spec, Output: "log"}, 400, `not absolute`},
		{"another method", "GET", "/v1/activate", nil, 405, ""},
		{"nothing to suspend", "POST", "/v1/suspend", s.Actor, 404, `"code":"not_active"`},
		{"nobody", "GET", "/v1/actors", nil, 200, `[]`},
		{"activate", "POST", "/v1/activate", s, 204, ""},
		{"again", "POST", "/v1/activate", s, 409, `"code":"already_active"`},
		{"who", "GET", "/v1/actors", nil, 200, fmt.Sprintf(`[{"Ref":"demo/a","UID":"uid-demo-a","User":%d,"Ready":true}]`, s.Program.User)},
		{"where", "GET", "/v1/worker", nil, 200, `"Slots":2,"Gateway":"gateway.test:443"`},
		{"who has ended at another", "GET", "/v1/ended?epoch=1", nil, 409, `"code":"other_epoch"`},
		{"counts", "GET", "/v1/counts", nil, 200, `"captured_carried":0`},
		{"suspend", "POST", "/v1/suspend", s.Actor, 204, ""},
		{"nobody again", "GET", "/v1/actors", nil, 200, `[]`},
		{"thaw", "POST", "/v1/activate", frozen, 204, ""},
		{"terminate", "POST", "/v1/terminate", s.Actor, 204, ""},
		{"terminate again", "POST", "/v1/terminate", s.Actor, 204, ""},
		{"nothing to thaw", "POST", "/v1/activate", frozen, 404, `"code":"not_active"`},
		{"a probe that nobody answers", "POST", "/v1/activate", hasty, 504, "within 1 s"},
	} {
		t.Run(step.name, func(t *testing.T) {
			status, got := o.ask(step.method, step.path, step.body)
			if status != step.status || !strings.Contains(got, step.want) {
				t.Errorf("%d %s, want %d with %s", status, got, step.status, step.want)
			}
		})
	}
	if left, err := o.run.Left(); err != nil || len(left) > 0 {
		t.Errorf("%v is left (%v)", left, err)
	}
}

// Who gives orders can tell a key that is not certified now from one that never will be.
func TestOrdersTellWhyThereIsNoKey(t *testing.T) {
	o := newOrdered(t)
	s := worker.Order{Spec: o.spec("demo/a")}
	for why, want := range map[error]string{errors.New("out of reach"): `"code":"not_certified"`, worker.ErrNoLonger: `"code":"failed"`} {
		o.fail.Store(&why)
		if _, got := o.ask("POST", "/v1/activate", s); !strings.Contains(got, want) {
			t.Errorf("%v: %s, want %s", why, got, want)
		}
	}
}

func TestOrdersTellWhoEnded(t *testing.T) {
	o := newOrdered(t)
	told := make(chan string, 1)
	go func() {
		_, got := o.ask("GET", "/v1/ended", nil)
		told <- got
	}()
	s := worker.Order{Spec: o.spec("demo/a"), Output: filepath.Join(t.TempDir(), "log")}
	s.Probe, s.Program.Args = worker.Probe{}, []string{"as-actor", "exit", "5"}
	if status, got := o.ask("POST", "/v1/activate", s); status != 204 {
		t.Fatal(status, got)
	}
	if got, want := <-told, `[{"Ref":"demo/a","UID":"uid-demo-a","How":"exit status 5"}]`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// What a killed worker has left at the path is replaced; anything else is not.
func TestOrdersSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "orders")
	l, err := worker.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
	if l, err = worker.Listen(path); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := worker.Listen(path); err == nil {
		t.Error("a file was replaced")
	}
}
