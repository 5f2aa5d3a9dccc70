package http3_test

import (
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

// A client that goes on opening streams behind the last GOAWAY, while one of its requests runs, is ended for it.
func TestRejectedFlood(t *testing.T) {
	began := make(chan struct{}, 1)
	r := start(t, settings(exchange.HandlerFunc(func(x *exchange.Exchange) error {
		began <- struct{}{}
		<-x.Departed()
		return exchange.ErrDeparted
	})))
	p := dial(t, r)
	p.send(get(), true)
	within(t, "the request", began)
	r.live.Drain(drain.Prompt)
	p.awaitGoAway(2)
	for range 10_000 {
		st, err := p.q.OpenStreamSync(p.q.Context())
		if err != nil {
			break
		}
		_, _ = st.Write(get())
		_ = st.Close()
	}
	if code := p.over(); code != 0x107 {
		t.Errorf("ended with %#x", code)
	}
}

// A connection whose handshake was under way when the others were told to end is told, too.
func TestDrainBeforeEntering(t *testing.T) {
	set := settings(echo)
	set.KeepAliveTimeout = time.Minute
	r := start(t, set)
	r.listener.Drain(drain.Gentle)
	p := dial(t, r)
	if got := p.await(p.send(get(), true)); got.status != "200" {
		t.Errorf("%+v", got)
	}
	p.awaitGoAway(2)
	r.listener.Open() // it is wanted again
	p = dial(t, r)
	for range 2 {
		if got := p.await(p.send(get(), true)); got.status != "200" {
			t.Errorf("%+v", got)
		}
	}
	select {
	case <-p.q.Context().Done():
		t.Error("ended although it is wanted again")
	default:
	}
}
