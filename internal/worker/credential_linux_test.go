package worker_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/worker"
)

// A clock that is set, or a machine that has slept, makes a certificate old at once, or has it begin in the future. It is renewed
// within a minute all the same, and not when the timer would have rung: until then nothing would be carried out.
func TestCredentialsGoByTheWallClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority, err := cert.OpenAuthority(cert.AuthorityOptions{Name: "actors"})
		if err != nil {
			t.Fatal(err)
		}
		mint := func(_ context.Context, _ worker.Actor, request []byte) ([][]byte, error) {
			return authority.IssueFor(request, cert.TunnelLeaf(gatewayURI+"demo/a"))
		}
		c, err := worker.NewCredential(t.Context(), worker.Actor{Ref: "demo/a", UID: "u"}, mint)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		renewed := 0
		running.Go(func() { c.Run(ctx, func() { renewed++ }) })
		for i, jump := range []time.Duration{2 * time.Hour, -24 * time.Hour} {
			time.Sleep(time.Second) // the timer runs
			synctest.Wait()
			c.Elapse(jump)
			time.Sleep(time.Minute)
			synctest.Wait()
			if err := c.Usable(); renewed != i+1 || err != nil {
				t.Errorf("a certificate that is older by %s: renewed %d times, %v", jump, renewed, err)
			}
		}
		time.Sleep(50 * time.Minute) // and no sooner than it is due
		synctest.Wait()
		if renewed != 2 {
			t.Errorf("renewed %d times", renewed)
		}
		stop()
		running.Wait()
	})
}
