package service_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
	"github.com/sluice-proxy/sluice/internal/conn"
	"github.com/sluice-proxy/sluice/internal/exchange"
	"github.com/sluice-proxy/sluice/internal/service"
)

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// A destination is resolved once, and nothing is dialed but addresses that were judged, in their order.
func TestDestinations(t *testing.T) {
	names := map[string][]netip.Addr{
		"good.test.":   addrs("198.41.0.4", "2606:4700::1", "198.41.0.4"),
		"mixed.test.":  addrs("127.0.0.1", "169.254.169.254", "198.41.0.4", "::ffff:10.0.0.1", "64:ff9b::7f00:1"),
		"evil.test.":   addrs("127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "fe80::1%eth0", "2002:a00:1::"),
		"inside.test.": addrs("10.1.2.3"),
		"denied.test.": addrs("10.1.9.9", "192.0.66.1"),
	}
	for i := range 40 {
		names["many.test."] = append(names["many.test."], netip.AddrFrom4([4]byte{8, 8, 8, byte(i)}))
	}
	cfg := &config.Connect{
		Ports: []int{443, 8443}, Allow: prefixes("10.1.0.0/16"), Deny: prefixes("10.1.9.0/24", "192.0.66.0/24"), ConnectTimeout: time.Second,
	}
	refuse := errors.New("nobody listens")
	for _, tt := range []struct {
		target string
		dialed []string
		err    error
	}{
		{"good.test:443", []string{"198.41.0.4:443", "[2606:4700::1]:443"}, refuse},
		{"mixed.test:8443", []string{"198.41.0.4:8443"}, refuse},
		{"evil.test:443", nil, service.ErrDenied},
		{"inside.test:443", []string{"10.1.2.3:443"}, refuse},
		{"denied.test:443", nil, service.ErrDenied},
		{"unknown.test:443", nil, conn.ErrResolve},
		{"good.test:80", nil, service.ErrDenied},
		{"198.41.0.4:443", []string{"198.41.0.4:443"}, refuse},
		{"127.0.0.1:443", nil, service.ErrDenied},
		{"[::ffff:127.0.0.1]:443", nil, service.ErrDenied},
		{"[::1]:443", nil, service.ErrDenied},
		{"10.1.9.1:443", nil, service.ErrDenied},
		{"[64:ff9b::c000:4201]:443", nil, service.ErrDenied}, // 192.0.66.1 by way of a translator
		{"[2002:c000:4201::1]:443", nil, service.ErrDenied},
		{"[64:ff9b::c629:4]:443", []string{"[64:ff9b::c629:4]:443"}, refuse},
	} {
		t.Run(tt.target, func(t *testing.T) {
			asked := 0
			var dialed []string
			d := service.NewDestinations("s", cfg, func(_ context.Context, host string) ([]netip.Addr, error) {
				if asked++; names[host] == nil {
					return nil, &net.DNSError{IsNotFound: true, Name: host}
				}
				return names[host], nil
			}, func(_ context.Context, addr string) (net.Conn, error) {
				dialed = append(dialed, addr)
				return nil, refuse
			})
			to, err := exchange.ParseAuthority([]byte(tt.target))
			if err != nil {
				t.Fatal(err)
			}
			if _, err = d.Dial(t.Context(), to); !errors.Is(err, tt.err) || !slices.Equal(dialed, tt.dialed) || asked > 1 {
				t.Errorf("dialed %v, asked %d times, %v", dialed, asked, err)
			}
		})
	}
	t.Run("many", func(t *testing.T) {
		n := 0
		d := service.NewDestinations("s", cfg, func(context.Context, string) ([]netip.Addr, error) { return names["many.test."], nil },
			func(context.Context, string) (net.Conn, error) { n++; return nil, refuse })
		to, _ := exchange.ParseAuthority([]byte("many.test:443"))
		if _, err := d.Dial(t.Context(), to); !errors.Is(err, conn.ErrConnect) || n != 16 {
			t.Errorf("%d addresses were tried, %v", n, err)
		}
	})
}

// The machine's own addresses are refused, also public ones.
func TestOwnAddressesAreRefused(t *testing.T) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	d := service.NewDestinations("s", &config.Connect{Ports: []int{443}, ConnectTimeout: time.Second}, nil, func(_ context.Context, addr string) (net.Conn, error) {
		t.Errorf("dialed %s", addr)
		return nil, errors.New("not to be dialed")
	})
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil {
			continue
		}
		if _, err := d.Dial(t.Context(), exchange.Authority{Addr: p.Addr().Unmap().WithZone(""), Port: 443}); !errors.Is(err, service.ErrDenied) {
			t.Errorf("%s: %v", a, err)
		}
	}
}
