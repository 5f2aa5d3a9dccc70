package worker_test

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/worker"
)

// suspending begins to suspend an actor that has a tunnel open, and returns once no others are taken.
func suspending(h *host, s worker.Spec) <-chan error {
	suspended := make(chan error, 1)
	go func() { suspended <- h.Suspend(context.Background(), s.UID) }()
	for {
		if _, e := h.open(s.Ref, 81); errors.Is(<-e, worker.ErrStale) {
			return suspended
		}
	}
}

// beginning returns once an activation is under way.
func beginning(h *host) {
	for len(h.Actors()) == 0 {
		runtime.Gosched()
	}
}

func expectNothing(t *testing.T, h *host) {
	t.Helper()
	if left, err := h.run.Left(); err != nil || len(left) > 0 || h.held.Load() != 0 || len(h.Actors()) != 0 {
		t.Errorf("%v, %d credentials and the stays %v are left (%v)", left, h.held.Load(), h.Actors(), err)
	}
}

// Open tunnels may finish while their actor is being suspended, for a while.
func TestSuspendDrains(t *testing.T) {
	t.Run("a tunnel that ends", func(t *testing.T) {
		h := newHost(t, newRun(t), func(o *worker.Options) { o.SuspendDrain = patience })
		s := h.activate("demo/a")
		client, ended := echo(t, h)
		suspended := make(chan error, 1)
		go func() { suspended <- h.Suspend(context.Background(), s.UID) }()
		for { // until it takes no more
			if _, e := h.open("demo/a", 81); errors.Is(<-e, worker.ErrStale) {
				break
			}
		}
		say(t, client, "still there")
		_ = client.Close()
		if err := <-ended; err != nil {
			t.Errorf("the tunnel ended with %v", err)
		}
		if err := <-suspended; err != nil {
			t.Error(err)
		}
		_ = h.Terminate(context.Background(), s.UID)
	})
	t.Run("a tunnel that does not", func(t *testing.T) {
		h := newHost(t, newRun(t), nil)
		s := h.activate("demo/a")
		client, ended := echo(t, h)
		if err := h.Suspend(within(t, patience), s.UID); err != nil {
			t.Fatal(err)
		}
		<-ended
		_ = client.SetDeadline(time.Now().Add(patience))
		if _, err := client.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("reading from a tunnel that was cut: %v", err)
		}
		_ = h.Terminate(context.Background(), s.UID)
	})
}

// echo is a tunnel with a request under way.
func echo(t *testing.T, h *host) (*conn.MemoryConn, <-chan error) {
	t.Helper()
	client, ended := h.open("demo/a", 80)
	_, _ = io.WriteString(client, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
	say(t, client, "hello")
	return client, ended
}

// say writes and waits until it comes back.
func say(t *testing.T, c *conn.MemoryConn, text string) {
	t.Helper()
	_, _ = io.WriteString(c, text)
	_ = c.SetReadDeadline(time.Now().Add(patience))
	got := ""
	b := make([]byte, 256)
	for !strings.Contains(got, text) {
		n, err := c.Read(b)
		if err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		got += string(b[:n])
	}
}

// Terminating an actor means that it is gone, also when somebody else has just begun to suspend it.
func TestTerminateWhileSuspending(t *testing.T) {
	h := newHost(t, newRun(t), func(o *worker.Options) { o.SuspendDrain = 500 * time.Millisecond })
	s := h.activate("demo/a")
	client, ended := echo(t, h)
	suspended := suspending(h, s)
	if err := h.Terminate(within(t, patience), s.UID); err != nil {
		t.Error(err)
	}
	expectNothing(t, h)
	<-suspended
	<-ended
	_ = client.Close()
}

// An actor that ends while it is being suspended is not one that can be thawed.
func TestActorEndsWhileSuspending(t *testing.T) {
	h := newHost(t, newRun(t), func(o *worker.Options) { o.SuspendDrain = patience })
	s := h.activate("demo/a")
	client, ended := echo(t, h)
	other, otherEnded := h.open("demo/a", 80)
	suspended := suspending(h, s)
	_, _ = io.WriteString(other, "GET /exit HTTP/1.1\r\nHost: a\r\n\r\n")
	_, _ = io.ReadAll(other) // it has ended, before it is frozen
	_, _ = client.Close(), other.Close()
	if err := <-suspended; !errors.Is(err, worker.ErrStale) {
		t.Errorf("suspending: %v", err)
	}
	expectNothing(t, h)
	<-ended
	<-otherEnded
}

// Nor is one that was killed after it was suspended: the attempt to thaw it removes what is left.
func TestThawOfAnActorThatWasKilled(t *testing.T) {
	h := newHost(t, newRun(t), nil)
	s := h.activate("demo/a")
	if err := h.Suspend(within(t, patience), s.UID); err != nil {
		t.Fatal(err)
	}
	g, err := h.run.OpenGroup(s.UID)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Kill(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	s.Thaw = true
	if err := h.Activate(within(t, patience), s); err == nil {
		t.Error("it was thawed")
	}
	expectNothing(t, h)
}

// A worker does not remember for ever whom it has started: actors move on and end elsewhere.
func TestActorsThatEndElsewhereAreForgotten(t *testing.T) {
	r := newRun(t)
	first, second := newHost(t, r, nil), newHost(t, r, nil)
	s := first.activate("demo/a")
	if err := first.Suspend(within(t, patience), s.UID); err != nil {
		t.Fatal(err)
	}
	s.Thaw = true
	if err := second.Activate(within(t, patience), s); err != nil {
		t.Fatal(err)
	}
	if err := second.Terminate(within(t, patience), s.UID); err != nil {
		t.Fatal(err)
	}
	for over := within(t, patience); first.Children() > 0; {
		if over.Err() != nil {
			t.Fatal("it is remembered")
		}
		runtime.Gosched()
	}
}

// Who suspends an actor whose activation then fails is told that there is no such actor.
func TestSuspendOfAnActivationThatFails(t *testing.T) {
	h := newHost(t, newRun(t), nil)
	s := h.spec("demo/a")
	s.Probe.Path, s.Probe.Seconds = "/other", 1
	activated := make(chan error, 1)
	go func() { activated <- h.Activate(within(t, patience), s) }()
	beginning(h)
	if err := h.Suspend(within(t, patience), s.UID); !errors.Is(err, worker.ErrStale) {
		t.Errorf("suspending: %v", err)
	}
	if err := <-activated; !errors.Is(err, worker.ErrNotUp) {
		t.Errorf("activating: %v", err)
	}
	expectNothing(t, h)
}

// Terminating gives an activation up that is under way, and does not wait for it to fail.
func TestTerminateWhileActivating(t *testing.T) {
	h := newHost(t, newRun(t), nil)
	s := h.spec("demo/a")
	s.Probe.Path = "/other"
	activated := make(chan error, 1)
	go func() { activated <- h.Activate(context.Background(), s) }()
	beginning(h)
	if err := h.Terminate(within(t, patience), s.UID); err != nil {
		t.Errorf("terminating: %v", err)
	}
	if err := <-activated; err == nil {
		t.Error("it was activated")
	}
	expectNothing(t, h)
}

// A worker that has no time left for its end leaves nothing all the same.
func TestCloseWithoutTime(t *testing.T) {
	for range 8 { // a choice by chance would go well half of the time
		h := newHost(t, newRun(t), nil)
		h.activate("demo/a")
		over, cancel := context.WithCancel(context.Background())
		cancel()
		if err := h.Close(over); err != nil {
			t.Errorf("closing: %v", err)
		}
		expectNothing(t, h)
	}
}

// The end of orders gives an activation up that is under way.
func TestOrdersEndWhileActivating(t *testing.T) {
	o := newOrdered(t)
	s := o.spec("demo/a")
	s.Probe.Path = "/other"
	answered := make(chan int, 1)
	go func() {
		status, _ := o.ask("POST", "/v1/activate", worker.Order{Spec: s})
		answered <- status
	}()
	beginning(o.host)
	o.stop()
	select {
	case <-answered:
	case <-time.After(patience):
		t.Error("the activation goes on")
		_ = o.Terminate(within(t, patience), s.UID)
		<-answered
	}
	expectNothing(t, o.host)
}
