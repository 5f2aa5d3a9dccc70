package main

import (
	"context"
	"errors"
	"os/exec"
	"time"
)

// settle is how long a proxy is left alone before its idle memory is read: long enough for a
// garbage collection, a flush of logs and the like.
const settle = 3 * time.Second

// idleRow is the memory of idle clear-text connections of one proxy.
type idleRow struct {
	Proxy       string  `json:"proxy"`
	Connections int     `json:"connections"`
	Alive       int     `json:"alive"` // still open as the memory was read
	Before      int64   `json:"before_bytes"`
	After       int64   `json:"after_bytes"`
	Each        float64 `json:"kib_each"`
	Failed      string  `json:"failed,omitempty"`
}

// measureIdle starts a fresh instance, so that memory left over from load does not hide what
// a connection takes, opens the connections with one request on each, and compares.
func (b *bench) measureIdle(ctx context.Context, c candidate, count int) (idleRow, error) {
	out := idleRow{Proxy: c.name, Connections: count}
	p, err := b.startPeer(ctx, c)
	if err != nil {
		return out, err
	}
	defer p.stop()
	warm := workload{Tool: toolClosed, Path: "/", Conns: 64, Body: 42}
	if _, err := b.loadOnce(ctx, warm, p.site, 0.5); err != nil {
		return out, err
	}
	if out.Before, err = p.restingPSS(ctx); err != nil {
		return out, err
	}
	idle := workload{Tool: toolIdle, Path: "/", Conns: count, Body: 42}
	l, err := startLoad(exec.Command(b.kit.load, idle.loadArgs(p.site.Plain, 0)...))
	if err != nil {
		return out, err
	}
	defer l.finish()
	res, err := l.result(ctx, 2*toolGrace)
	if err != nil {
		return out, err
	}
	if out.After, err = p.restingPSS(ctx); err != nil {
		return out, err
	}
	if _, err := l.in.Write([]byte("alive\n")); err != nil {
		return out, err
	}
	alive, err := l.result(ctx, toolGrace)
	if err != nil {
		return out, err
	}
	out.Alive = alive.Alive
	if res.N != int64(count) || out.Alive == 0 {
		return out, errors.New("not every connection got its answer")
	}
	out.Each = float64(out.After-out.Before) / 1024 / float64(out.Alive)
	return out, nil
}

// loadOnce runs a client of our own and discards what it held.
func (b *bench) loadOnce(ctx context.Context, w workload, s site, seconds float64) (loadResult, error) {
	cmd, err := b.kit.command(w, s, seconds)
	if err != nil {
		return loadResult{}, err
	}
	l, err := startLoad(cmd)
	if err != nil {
		return loadResult{}, err
	}
	defer l.finish()
	return l.result(ctx, toolGrace)
}

// restingPSS is the memory of the proxy after it was left alone for a while.
func (p *running) restingPSS(ctx context.Context) (int64, error) {
	timer := time.NewTimer(settle)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	procs, err := readAll()
	if err != nil {
		return 0, err
	}
	return sumPSS(family(procs, p.pid()))
}
