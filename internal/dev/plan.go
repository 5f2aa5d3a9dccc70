package dev

import (
	"fmt"
	"net/netip"
	"strings"
)

// The fabric: one flat network on a bridge, with a namespace for each part. Addresses of origins are of the public kind, and lead
// anywhere in here alone.
var (
	bridgeAddress = netip.MustParsePrefix("10.88.0.1/24")

	routerHost  = host{"router", addrs("10.88.0.10")}
	egressHost  = host{"egress", addrs("10.88.0.11")}
	ateapiHost  = host{"ateapi", addrs("10.88.0.12")}
	originsHost = host{"origins", addrs("10.88.0.80", "93.184.216.34", "93.184.216.35", "93.184.216.66", metadataAddress)}
)

// Ports in the fabric.
const (
	routerPort     = 8443
	connectPort    = 8444
	ateapiPort     = 7443
	egressPort     = 15443
	managementPort = 9090
	workerPort     = 8443
)

// metadataAddress is where clouds tell a machine its secrets, RFC 3927 in general.
const metadataAddress = "169.254.169.254"

// host is a namespace on the bridge.
type host struct {
	name  string
	addrs []netip.Prefix
}

func (h host) at(port uint16) netip.AddrPort { return netip.AddrPortFrom(h.addrs[0].Addr(), port) }

// workerHost is the namespace of the n-th worker, from 1.
func workerHost(n int) host {
	return host{workerName(n), addrs(fmt.Sprintf("10.88.0.%d", 100+n))}
}

func workerName(n int) string { return fmt.Sprintf("w%d", n) }

// addrs are addresses of one host: those of the fabric know their network, all others are alone.
func addrs(texts ...string) []netip.Prefix {
	all := make([]netip.Prefix, len(texts))
	for i, t := range texts {
		a, bits := netip.MustParseAddr(t), 32
		if bridgeAddress.Contains(a) {
			bits = bridgeAddress.Bits()
		}
		all[i] = netip.PrefixFrom(a, bits)
	}
	return all
}

// Names of the origins. What an actor may reach of them is its policy's to say; the last ones must never be reached by anybody.
const (
	apiName      = "api.demo.test"  // http and https
	passName     = "pass.demo.test" // TLS, which policies let through unopened
	otherName    = "other.demo.test"
	evilName     = "evil.demo.test"
	metadataName = "metadata.demo.test"
	loopbackName = "loopback.demo.test"
	privateName  = "private.demo.test"
)

// names are the origins' addresses, as the egress gateway and the actors are told them.
var names = []struct{ name, address string }{
	{apiName, "93.184.216.34"},
	{passName, "93.184.216.35"},
	{otherName, "93.184.216.34"},
	{evilName, "93.184.216.66"},
	{metadataName, metadataAddress},
	{loopbackName, "127.0.0.1"},
	{privateName, "10.88.0.80"},
}

// originsFile is the table of the egress gateway, in the form of hosts(5).
func originsFile() string {
	text := ""
	for _, n := range names {
		text += n.address + " " + n.name + "\n"
	}
	return text
}

// actorsFile is the table of actors. It is the same but for the loopback address, which an actor would dial in its own namespace: where
// a name leads to is decided by the gateway's table alone.
func actorsFile() string {
	return strings.ReplaceAll(originsFile(), "127.0.0.1 ", "93.184.216.66 ")
}

// certified are the origins that TLS is spoken with.
func certified() []string { return []string{apiName, passName, otherName, evilName} }

// demoPolicy is what actors of the demonstration may reach, in the JSON of the wire. That a name is allowed does not make its address so.
const demoPolicy = `{"rules":[
  {"http":{"hostnames":["` + apiName + `","` + metadataName + `","` + loopbackName + `","` + privateName + `"]}},
  {"https":{"hostnames":["` + apiName + `","` + otherName + `"]}},
  {"tls_passthrough":{"hostnames":["` + passName + `"],"ports":{"numbers":[443]}}}
]}`
