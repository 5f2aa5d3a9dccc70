package http3_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	qhttp3 "github.com/quic-go/quic-go/http3"
)

// Session tickets are made and opened with the keys that the entrypoint's configuration has at the moment: they are replaced
// while it is in use, and a ticket of keys that are gone resumes nothing.
func TestTicketKeys(t *testing.T) {
	r := start(t, settings(echo))
	r.tls.Load().SetSessionTicketKeys([][32]byte{{1}})
	cache := tls.NewLRUClientSessionCache(4)
	resumes := func() bool {
		tr := &qhttp3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ClientSessionCache: cache, ServerName: "gateway.test"}}
		defer func() { _ = tr.Close() }()
		resp, _ := do(t, &http.Client{Transport: tr}, request(t, "GET", "https://"+r.addr, nil))
		return resp.TLS.DidResume
	}
	if resumes() {
		t.Fatal("resumed a session that there was not")
	}
	if !resumes() {
		t.Error("a ticket does not resume its session")
	}
	r.tls.Load().SetSessionTicketKeys([][32]byte{{2}, {1}})
	if !resumes() {
		t.Error("a ticket of an earlier key does not resume its session")
	}
	r.tls.Load().SetSessionTicketKeys([][32]byte{{3}})
	if resumes() {
		t.Error("a ticket resumes its session although its key is gone")
	}
}

// A handshake that does not go on is ended by force like a connection: who shuts down does not wait for its time limit.
func TestForceHandshake(t *testing.T) {
	r := start(t, settings(echo))
	r.handshake.Store(int64(time.Minute))
	to, err := net.ResolveUDPAddr("udp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var dialing sync.WaitGroup
	defer dialing.Wait()
	defer cancel()
	dialing.Go(func() {
		d := &deaf{PacketConn: pc, sent: make(chan struct{})}
		if _, err := quic.Dial(ctx, d, to, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h3"}}, nil); err == nil {
			t.Error("connected without an answer")
		}
	})
	for end := time.Now().Add(10 * time.Second); r.admitted.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the handshake does not begin")
		}
	}
	r.live.Force()
	wait, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	if err := r.listener.Wait(wait); err != nil {
		t.Errorf("the handshake goes on: %v", err)
	}
}
