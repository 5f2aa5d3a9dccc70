package http1_test

import (
	"bufio"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/drain"
	"github.com/sluice-proxy/sluice/internal/exchange"
)

func TestDrain(t *testing.T) {
	eachMode(t, func(t *testing.T, m mode) {
		clock := testClock(t)
		blocking := func() (h serveFunc, started, goOn chan struct{}) {
			started, goOn = make(chan struct{}, 1), make(chan struct{})
			return func(x *exchange.Exchange) error {
				started <- struct{}{}
				select {
				case <-goOn:
				case <-x.Departed():
					return exchange.ErrForced
				}
				return plainOK(x)
			}, started, goOn
		}
		t.Run("busy", func(t *testing.T) {
			h, started, goOn := blocking()
			s := serve(t, m, clock, settings(h))
			c := s.dial()
			io.WriteString(c, get())
			<-started
			s.live.Drain(drain.Prompt)
			close(goOn)
			r := bufio.NewReader(c)
			if a := readAnswer(t, r, ""); a.StatusCode != 200 || !a.Close {
				t.Errorf("%d %v", a.StatusCode, a.Header)
			}
			ended(t, r)
		})
		t.Run("idle", func(t *testing.T) {
			s := serve(t, m, clock, settings(serveFunc(plainOK)))
			c := s.dial()
			io.WriteString(c, get())
			r := bufio.NewReader(c)
			readAnswer(t, r, "")
			s.live.Drain(drain.Prompt)
			ended(t, r)
		})
		t.Run("received while idle", func(t *testing.T) { // the request is in the socket when the drain begins, or comes too late
			for range 20 {
				s := serve(t, m, clock, settings(serveFunc(plainOK)))
				c := s.dial()
				io.WriteString(c, get())
				s.live.Drain(drain.Prompt)
				r := bufio.NewReader(c)
				if a := readAnswer(t, r, ""); a.StatusCode != 200 {
					t.Fatalf("%d", a.StatusCode)
				}
				ended(t, r)
			}
		})
		t.Run("inside a head", func(t *testing.T) {
			s := serve(t, m, clock, settings(serveFunc(plainOK)))
			c := s.dial()
			io.WriteString(c, "GET /a HTTP/1.1\r\n")
			for unread(s.far) {
				time.Sleep(time.Millisecond)
			}
			s.live.Drain(drain.Prompt)
			io.WriteString(c, "Host: h\r\n\r\n")
			if a := readAnswer(t, bufio.NewReader(c), ""); a.StatusCode != 200 || !a.Close {
				t.Errorf("%d %v", a.StatusCode, a.Header)
			}
		})
		t.Run("gently", func(t *testing.T) {
			s := serve(t, m, clock, settings(serveFunc(plainOK)))
			c := s.dial()
			r := bufio.NewReader(c)
			io.WriteString(c, get())
			readAnswer(t, r, "")
			s.live.Drain(drain.Gentle)
			io.WriteString(c, get())
			if a := readAnswer(t, r, ""); a.StatusCode != 200 || !a.Close {
				t.Errorf("%d %v", a.StatusCode, a.Header)
			}
			ended(t, r)
		})
		t.Run("forced", func(t *testing.T) {
			h, started, _ := blocking()
			s := serve(t, m, clock, settings(h))
			c := s.dial()
			io.WriteString(c, get())
			<-started
			s.live.Force()
			s.wg.Wait()
			ended(t, c)
		})
		t.Run("forced while reading", func(t *testing.T) {
			got := make(chan error, 1)
			started := make(chan struct{})
			var record exchange.Outcome
			s := serve(t, m, clock, settings(serveFunc(func(x *exchange.Exchange) error {
				close(started)
				_, err := readBody(x)
				x.Fail(err)
				record = x.Record.Outcome
				got <- err
				return nil
			})))
			c := s.dial()
			io.WriteString(c, post("Content-Length: 100"))
			<-started
			s.live.Force()
			if err := <-got; !errors.Is(err, exchange.ErrForced) || record != exchange.OutcomeDrained {
				t.Errorf("%v, outcome %v", err, record)
			}
			s.wg.Wait()
		})
		t.Run("forced while writing", func(t *testing.T) {
			s := serve(t, m, clock, settings(serveFunc(func(x *exchange.Exchange) error {
				x.Response.Status = 200
				for {
					if err := x.Send(make([]byte, 64<<10), false); err != nil {
						return err
					}
				}
			})))
			c := s.dial()
			io.WriteString(c, get())
			readSome(t, c)
			s.live.Force()
			s.wg.Wait()
		})
	})
}
