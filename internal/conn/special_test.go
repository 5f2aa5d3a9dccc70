package conn_test

import (
	"net/netip"
	"testing"

	"github.com/sluice-proxy/sluice/internal/conn"
)

func TestSpecial(t *testing.T) {
	tests := map[string]bool{
		"0.0.0.0": true, "0.255.255.255": true, "1.0.0.0": false, "9.255.255.255": false, "10.0.0.0": true, "10.255.255.255": true, "11.0.0.0": false,
		"100.63.255.255": false, "100.64.0.0": true, "100.127.255.255": true, "100.128.0.0": false, "127.0.0.1": true, "127.255.255.255": true,
		"169.253.255.255": false, "169.254.169.254": true, "172.15.255.255": false, "172.16.0.0": true, "172.31.255.255": true, "172.32.0.0": false,
		"192.0.0.1": true, "192.0.1.0": false, "192.168.1.1": true, "198.17.255.255": false, "198.18.0.0": true, "198.19.255.255": true, "198.20.0.0": false,
		"223.255.255.255": false, "224.0.0.1": true, "239.255.255.255": true, "240.0.0.0": true, "255.255.255.255": true, "8.8.8.8": false,
		"::": true, "::1": true, "::ffff:127.0.0.1": true, "::ffff:8.8.8.8": false, "::8.8.8.8": true, "fe80::1%eth0": true, "fec0::1": true,
		"fc00::1": true, "fdff::1": true, "fe00::1": false, "ff02::1": true, "2606:4700::1": false, "2001:db8::1": true,
		"64:ff9b::7f00:1": true, "64:ff9b::808:808": false, "64:ff9b:1::808:808": true, "2002:7f00:1::": true, "2002:808:808::1": false,
		"168.63.129.15": false, "168.63.129.16": true, "168.63.129.17": false, "64:ff9b::a83f:8110": true, "2001:0:4136:e378::1": true, "2001:200::1": false, "100::1": true,
	}
	for text, want := range tests {
		if got := conn.Special(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	if !conn.Special(netip.Addr{}) {
		t.Error("no address is not special")
	}
}
