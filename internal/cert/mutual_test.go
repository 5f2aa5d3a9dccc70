package cert_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/cert"
	"github.com/sluice-proxy/sluice/internal/mutual"
)

// exactly welcomes one URI.
func exactly(want string) func(string) error {
	return func(uri string) error {
		if uri != want {
			return fmt.Errorf("%q is not %q", uri, want)
		}
		return nil
	}
}

// mountTLS reads the files of a mount as a process would that knows nothing of the hub.
func mountTLS(t *testing.T, h *cert.Hub, dir string, check func(string) error) mutual.TLS {
	t.Helper()
	own, err := mutual.OpenCredential(h.Path(dir, cert.CredentialFile))
	if err != nil {
		t.Fatal(err)
	}
	peers, err := mutual.OpenTrust(h.Path(dir, cert.TrustFile))
	if err != nil {
		t.Fatal(err)
	}
	return mutual.TLS{Own: own, Peers: peers, Check: check, Protocols: []string{"h2", "http/1.1"}}
}

// echo serves TLS on loopback and sends back what it gets, until the test ends.
func echo(t *testing.T, config *tls.Config) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		served.Wait()
	})
	return l.Addr().String()
}

// meet opens a connection and sends a byte there and back, which proves that both sides have accepted each other: in TLS
// 1.3 a client has finished its handshake before the server has judged it.
func meet(address string, config *tls.Config) (*tls.Conn, error) {
	c, err := tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", address, config)
	if err != nil {
		return nil, err
	}
	if err := say(c); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

func say(c *tls.Conn) error {
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

// TestRotationUnderHandshakes rotates the authority of a server and its clients 50 times, each time with new leaves for
// all, while they shake hands without a pause. Not one handshake may fail, and a connection from before the first rotation
// lives on.
func TestRotationUnderHandshakes(t *testing.T) {
	h := openHub(t, cert.HubOptions{MinSigningAge: 1})
	mount(t, h, "worker/podidentity", cert.WorkloadAuthority, cert.WorkloadLeaf(workerURI, true))
	mount(t, h, "router/podidentity", cert.WorkloadAuthority, cert.WorkloadLeaf(routerURI, false))
	address := echo(t, mountTLS(t, h, "worker/podidentity", exactly(routerURI)).Server())
	client := mountTLS(t, h, "router/podidentity", exactly(workerURI))
	config := client.Client()

	lasting, err := meet(address, config)
	if err != nil {
		t.Fatal(err)
	}
	defer lasting.Close()

	ctx, stop := context.WithCancel(t.Context())
	var rounds [3]atomic.Int64
	progress := make(chan struct{}, 1) // something was counted
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	for i := range rounds {
		clients.Go(func() {
			for ctx.Err() == nil {
				c, err := meet(address, config)
				if err != nil {
					t.Errorf("handshake %d failed: %v", rounds[i].Load(), err)
					stop()
					return
				}
				_ = c.Close()
				rounds[i].Add(1)
				select {
				case progress <- struct{}{}:
				default:
				}
			}
		})
	}
	// settled waits until every client has made a handshake that began after now: what its files said before is past.
	settled := func() {
		var target [len(rounds)]int64
		for i := range rounds {
			target[i] = rounds[i].Load() + 2
		}
		for i := range rounds {
			for rounds[i].Load() < target[i] {
				select {
				case <-progress:
				case <-ctx.Done():
					return
				}
			}
		}
	}
	first := client.Own.Certificate().Leaf.SerialNumber
	for range 50 {
		for _, step := range []func(string) error{h.Add, h.Activate, h.Distrust} {
			if err := step(cert.WorkloadAuthority); err != nil {
				t.Fatal(err)
			}
			settled()
		}
		if err := say(lasting); err != nil {
			t.Fatalf("the lasting connection: %v", err)
		}
	}
	stop()
	clients.Wait()
	total := int64(0)
	for i := range rounds {
		total += rounds[i].Load()
	}
	t.Logf("%d handshakes over 50 rotations", total)
	if total < 50*3*2*int64(len(rounds)) || client.Own.Certificate().Leaf.SerialNumber.Cmp(first) == 0 {
		t.Errorf("%d handshakes: the rotations were not observed", total)
	}
}

// TestMutual has each side meet those that it must not.
func TestMutual(t *testing.T) {
	h, other := openHub(t, cert.HubOptions{}), openHub(t, cert.HubOptions{})
	for _, hub := range []*cert.Hub{h, other} {
		mount(t, hub, "worker", cert.WorkloadAuthority, cert.WorkloadLeaf(workerURI, true))
		mount(t, hub, "router", cert.WorkloadAuthority, cert.WorkloadLeaf(routerURI, false))
		mount(t, hub, "near", cert.WorkloadAuthority, cert.WorkloadLeaf(routerURI+"x", false))
		mount(t, hub, "actor", cert.ActorAuthority, cert.TunnelLeaf(routerURI))
		mount(t, hub, "service", cert.ServiceAuthority, cert.ServiceLeaf("api.ate-system.svc"))
	}
	server := mountTLS(t, h, "worker", exactly(routerURI))
	address := echo(t, server.Server())
	swap := func(m mutual.TLS, own mutual.Holder, peers *mutual.Trust) mutual.TLS {
		if own != nil {
			m.Own = own
		}
		if peers != nil {
			m.Peers = peers
		}
		return m
	}
	router := mountTLS(t, h, "router", exactly(workerURI))
	for _, tc := range []struct {
		name   string
		client *tls.Config
		ok     bool
	}{
		{"router and worker", router.Client(), true},
		{"a client without a certificate", &tls.Config{InsecureSkipVerify: true}, false},
		{"a URI that is almost right", swap(router, mountTLS(t, h, "near", nil).Own, nil).Client(), false},
		{"the right URI of another authority", swap(router, mountTLS(t, h, "actor", nil).Own, nil).Client(), false},
		{"the right URI of another installation", swap(router, mountTLS(t, other, "router", nil).Own, nil).Client(), false},
		{"the certificate of a service", swap(router, mountTLS(t, h, "service", nil).Own, nil).Client(), false},
		{"a server that is not the expected one", mountTLS(t, h, "router", exactly(workerURI+"x")).Client(), false},
		{"a server of another installation", swap(router, nil, mountTLS(t, other, "router", nil).Peers).Client(), false},
		{"a client that expects nobody", mountTLS(t, h, "router", nil).Client(), false},
		{"a client that expects a name", router.ClientOf("worker.test"), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := meet(address, tc.client)
			if (err == nil) != tc.ok {
				t.Errorf("meeting: %v, want ok %v", err, tc.ok)
			}
			if err != nil {
				return
			}
			defer c.Close()
			if s := c.ConnectionState(); s.NegotiatedProtocol != "h2" || s.DidResume || s.Version < tls.VersionTLS12 {
				t.Errorf("protocol %q, resumed %v, version %x", s.NegotiatedProtocol, s.DidResume, s.Version)
			}
		})
	}

	t.Run("a server with a certificate that is for clients", func(t *testing.T) {
		bad := swap(server, router.Own, nil)
		bad.Check = exactly(workerURI)
		if c, err := meet(echo(t, bad.Server()), swap(mountTLS(t, h, "router", exactly(routerURI)), server.Own, nil).Client()); err == nil {
			_ = c.Close()
			t.Error("it is accepted")
		}
	})
	t.Run("a service by its name", func(t *testing.T) {
		service := mountTLS(t, h, "service", exactly(routerURI))
		service.Peers = router.Peers // it admits pods
		at := echo(t, service.Server())
		caller := swap(router, nil, mountTLS(t, h, "service", nil).Peers)
		for name, ok := range map[string]bool{"api.ate-system.svc": true, "api.ate-system.svc.evil": false, "ate-system.svc": false, "": false} {
			c, err := meet(at, caller.ClientOf(name))
			if (err == nil) != ok {
				t.Errorf("%q: %v, want ok %v", name, err, ok)
			}
			if err == nil {
				_ = c.Close()
			}
		}
	})
	t.Run("never resumed", func(t *testing.T) {
		config := router.Client()
		config.ClientSessionCache = tls.NewLRUClientSessionCache(4)
		for range 3 {
			c, err := meet(address, config)
			if err != nil {
				t.Fatal(err)
			}
			if c.ConnectionState().DidResume {
				t.Error("a session was resumed")
			}
			_ = c.Close()
		}
	})
}
