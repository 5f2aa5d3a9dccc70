package worker

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"
)

// Probe tells that an actor is ready by an HTTP request that it answers with 200. That it takes connections is no proof:
// the kernel does that for a frozen actor, too.
type Probe struct {
	Port uint16 // 0: the actor is ready once it runs
	Path string // "" is /
	// Seconds are how long it may take; 0 is as long as the activation may.
	Seconds int
}

// Pauses between requests of a probe, growing.
const (
	firstPause = 2 * time.Millisecond
	lastPause  = 200 * time.Millisecond
	probeLimit = 2 * time.Second // of one request
)

// probe asks until the actor is ready, ends, or ctx does.
func (a *Activation) probe(ctx context.Context) error {
	if a.spec.Probe.Port == 0 {
		return nil
	}
	if s := a.spec.Probe.Seconds; s > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(s)*time.Second, fmt.Errorf("it has not answered its probe with 200 within %d s", s))
		defer cancel()
	}
	to := netip.AddrPortFrom(actorAddress, a.spec.Probe.Port)
	client := &http.Client{
		Timeout: probeLimit,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return a.network.Gateway.Dial(ctx, to) },
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	url := "http://" + net.JoinHostPort(a.hostname, strconv.Itoa(int(to.Port()))) + "/" + trimSlash(a.spec.Probe.Path)
	var last error
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		err := ask(ctx, client, url)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil { // that time ran out tells less than the answer before
			last = err
		}
		select {
		case <-time.After(pause):
		case <-a.process.gone():
			return fmt.Errorf("%w: its program ended: %s", ErrNotUp, a.process.how)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w (last: %w)", ErrNotUp, context.Cause(ctx), last)
		}
	}
}

func ask(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, _ = io.CopyN(io.Discard, response.Body, 64<<10)
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("answered %s", response.Status)
	}
	return nil
}

func trimSlash(path string) string {
	if path != "" && path[0] == '/' {
		return path[1:]
	}
	return path
}
