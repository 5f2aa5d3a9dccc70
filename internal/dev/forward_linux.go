package dev

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/fabric"
)

const (
	// maxForwarded bounds the connections of one forward; the next ones wait in the kernel's queue.
	maxForwarded = 512
	forwardDial  = 5 * time.Second
	acceptPause  = 100 * time.Millisecond // after a connection that could not be accepted
)

// forward leads connections from a port of the machine's loopback address to an address in the fabric.
type forward struct {
	name string
	l    net.Listener
	in   *fabric.Namespace
	to   netip.AddrPort
	room chan struct{}
	stop context.CancelFunc
	all  sync.WaitGroup

	mu   sync.Mutex // guards the rest
	open map[net.Conn]bool
	shut bool
}

// openForward takes the port that is asked for or, when another process has it, any free one.
func openForward(name string, port uint16, in *fabric.Namespace, to netip.AddrPort) (*forward, error) {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return nil, err
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	f := &forward{name: name, l: l, in: in, to: to, room: make(chan struct{}, maxForwarded), stop: stop, open: map[net.Conn]bool{}}
	f.all.Go(func() { f.accept(ctx) })
	return f, nil
}

func (f *forward) addr() string { return f.l.Addr().String() }

func (f *forward) accept(ctx context.Context) {
	for {
		select {
		case f.room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		c, err := f.l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // for want of descriptors, say
			<-f.room
			rest(ctx, acceptPause)
			continue
		}
		f.all.Go(func() {
			defer func() { <-f.room }()
			f.carry(ctx, c)
		})
	}
}

// carry moves bytes both ways until both sides have ended.
func (f *forward) carry(ctx context.Context, c net.Conn) {
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, forwardDial)
	defer cancel()
	up, err := f.in.Dial(ctx, f.to)
	if err != nil {
		return // the client sees the end of its connection, as from a part that has ended
	}
	defer up.Close()
	if !f.keep(c, up) {
		return
	}
	defer f.drop(c, up)
	back := make(chan struct{})
	go func() { // waited for below
		defer close(back)
		move(c, up)
	}()
	move(up, c)
	<-back
}

// halfCloser is a connection whose sending side ends alone.
type halfCloser interface{ CloseWrite() error }

// move copies until from has ended, and passes the end on. A failure ends both.
func move(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if h, ok := to.(halfCloser); ok && err == nil && h.CloseWrite() == nil {
		return
	}
	_ = to.Close()
	_ = from.Close()
}

func (f *forward) keep(all ...net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range all {
		f.open[c] = true
	}
	return !f.shut
}

func (f *forward) drop(all ...net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range all {
		delete(f.open, c)
	}
}

// close ends it, with its connections.
func (f *forward) close() {
	f.stop()
	_ = f.l.Close()
	f.mu.Lock()
	f.shut = true
	for c := range f.open {
		_ = c.Close()
	}
	f.mu.Unlock()
	f.all.Wait()
}
