package config_test

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/config"
)

func TestAmong(t *testing.T) {
	all := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fe80::/10")}
	for addr, want := range map[string]bool{
		"10.1.2.3": true, "::ffff:10.1.2.3": true, "fe80::1%eth0": true, "11.0.0.1": false, "::1": false,
	} {
		if got := config.Among(all, netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %v", addr, got)
		}
	}
	if config.Among(all, netip.Addr{}) || config.Among(nil, netip.MustParseAddr("10.1.2.3")) {
		t.Error("no address, or no prefix, is among")
	}
}
