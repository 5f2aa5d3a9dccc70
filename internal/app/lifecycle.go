package app

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sluice-proxy/sluice/internal/drain"
)

// lifecycle waits for the order to stop, drains, and ends the parts.
func (a *App) lifecycle() {
	defer close(a.done)
	var failed error
	select {
	case <-a.stopping:
	case failed = <-a.group.Failed():
		a.log.Error("a part ended by itself; stopping", "error", failed)
		a.once[0].Do(func() { close(a.stopping) })
	}
	a.setState(stateStopping)
	a.notify("STOPPING=1")
	cfg := a.Config()
	mode, bound := drain.Prompt, cfg.ShutdownTimeout
	if a.upgraded.Load() {
		mode, bound = drain.Gentle, cfg.UpgradeDrain
		a.cedeManagement()
	} else {
		a.pause(cfg.ShutdownDelay)
	}
	a.servers.hide()
	a.log.Info("draining", "bound", bound, "mode", mode.String())
	err := a.drainConnections(mode, bound)
	a.err = errors.Join(failed, err, a.endParts(), a.release())
	a.setState(stateStopped)
	a.log.Info("stopped")
}

// cedeManagement leaves management to the process that has taken over. Both hold the same socket: as long as this one
// accepts, every other probe would be told by it that it stops.
func (a *App) cedeManagement() {
	ctx, cancel := context.WithTimeout(context.Background(), partsBound)
	defer cancel()
	a.admin.Close(ctx)
}

// partsBound is how long the parts beside the connections may take to end.
const partsBound = 10 * time.Second

// endParts ends what runs beside the connections; then nobody changes the configuration any more.
func (a *App) endParts() error {
	ctx, cancel := context.WithTimeout(context.Background(), partsBound)
	defer cancel()
	return a.group.Stop(ctx)
}

// release gives back what the configuration in force holds. Only then are generations and pools gone.
func (a *App) release() error {
	a.servers.close()
	a.store.Clear()
	if c := a.active.Swap(nil); c != nil {
		c.close()
	}
	a.actors.Close()
	a.certs.Wait()
	return nil
}

// pause keeps serving for d, with readiness false, so that load balancers look elsewhere first.
func (a *App) pause(d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-a.forcing:
	}
}

// drainConnections lets connections finish within bound. After a gentle drain that has gone on for its bound, and on
// Force, the rest is ended.
func (a *App) drainConnections(mode drain.Mode, bound time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	waiting.Go(func() {
		select {
		case <-a.forcing:
			cancel()
		case <-ctx.Done():
		}
	})
	forced, err := a.sockets.Shutdown(ctx, mode)
	if forced > 0 {
		a.log.Warn("connections were ended by the drain deadline", "connections", forced)
	}
	return err
}

// Residue is what the process still holds of configurations; zero once it has ended. For tests and for shutdown's own
// doubts: each number that stays is a leak.
type Residue struct {
	Generations     int64
	Backends, Pools int
	Limits, Checks  int
	Connections     int64
	Channels        int
}

// Residue counts.
func (a *App) Residue() Residue {
	r := Residue{Generations: a.store.Alive(), Limits: a.limits.Len(), Checks: a.checker.Len(), Channels: a.channels.Stats().Channels}
	r.Backends, r.Pools = a.registry.Len()
	for _, s := range a.sockets.Stats() {
		r.Connections += s.Open
	}
	return r
}
