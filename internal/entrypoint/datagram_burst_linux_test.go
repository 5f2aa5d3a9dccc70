package entrypoint_test

import (
	"bytes"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/entrypoint"
)

// burstUDP answers each datagram with n: its bytes, and the number of each.
func burstUDP(t testing.TB, n int) netip.AddrPort {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		b := make([]byte, 1<<16)
		for {
			got, from, err := c.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			for i := range n {
				_, _ = c.WriteToUDPAddrPort(append(b[:got:got], byte(i)), from)
			}
		}
	})
	t.Cleanup(func() { _ = c.Close(); wg.Wait() })
	return c.LocalAddr().(*net.UDPAddr).AddrPort()
}

// A backend that answers with many datagrams at once has all of them passed on, in their order, to each of its clients.
func TestDatagramBursts(t *testing.T) {
	const answers, questions, clients = 40, 5, 3
	_, to := datagramSet(t, &entrypoint.Datagrams{Handler: &toBackend{addr: burstUDP(t, answers)}, Timeout: time.Minute})
	var wg sync.WaitGroup
	for id := range clients {
		c := udpClient(t, to, nil)
		wg.Go(func() {
			defer c.Close()
			b := make([]byte, 64)
			for q := range questions {
				if _, err := c.Write([]byte{byte(id), byte(q)}); err != nil {
					t.Error(err)
					return
				}
				for i := range answers {
					n, err := c.Read(b)
					if want := []byte{byte(id), byte(q), byte(i)}; err != nil || !bytes.Equal(b[:n], want) {
						t.Errorf("answer %v: %v %v", want, b[:n], err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}
