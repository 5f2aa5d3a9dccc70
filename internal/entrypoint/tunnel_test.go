package entrypoint_test

import (
	"errors"
	"io"
	"testing"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/entrypoint"
)

// An entrypoint that listens nowhere serves what it is given, within its limits, and is known by its name.
func TestServeTunnel(t *testing.T) {
	set := entrypoint.NewSet(entrypoint.Setup{})
	serving, end := make(chan struct{}, 10), make(chan struct{})
	serve := func(c conn.Conn, _ *drain.Tracker) {
		serving <- struct{}{}
		<-end
		_, _ = io.Copy(c, c)
		_ = c.Close()
	}
	plan, err := set.Prepare(t.Context(), map[string]*entrypoint.Options{"inner": {Address: "tunnel:", HTTP: serve, MaxConnections: 1}})
	if err != nil {
		t.Fatal(err)
	}
	plan.Commit()
	plan.Finish(0)
	near, far := conn.Pipe()
	done := make(chan error, 1)
	go func() { done <- set.Serve("inner", conn.NewInner(far, &conn.Info{Entrypoint: "inner"})) }()
	<-serving
	if s := set.Stats(); len(s) != 1 || s[0].Open != 1 || s[0].Address != "tunnel:" {
		t.Errorf("%+v", s)
	}
	_, second := conn.Pipe()
	if err := set.Serve("inner", second); !errors.Is(err, entrypoint.ErrRefused) {
		t.Errorf("beyond the limit: %v", err)
	}
	if _, err := second.Write([]byte("x")); err == nil {
		t.Error("a refused connection is open")
	}
	_, third := conn.Pipe()
	if err := set.Serve("other", third); !errors.Is(err, entrypoint.ErrNoEntrypoint) {
		t.Errorf("unknown name: %v", err)
	}
	close(end)
	_, _ = near.Write([]byte("x"))
	_ = near.CloseWrite()
	if got, err := io.ReadAll(near); string(got) != "x" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if forced, err := set.Shutdown(t.Context(), drain.Prompt); forced != 0 || err != nil {
		t.Errorf("%d forced, %v", forced, err)
	}
}
