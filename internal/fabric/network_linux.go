package fabric

import (
	"errors"
	"fmt"
	"net/netip"
)

const (
	hubName = "fabric"
	bridge  = "br0"
)

// Network is one flat Ethernet of the development network: a bridge in a namespace of its own, and hosts, each in its
// own namespace, on it. No host forwards. Each takes every address to be a neighbour, so that a host can have public
// addresses that exist in here alone.
type Network struct {
	run   Run
	hub   *Namespace
	hosts int // named cables so far
}

// CreateNetwork makes the bridge, whose own address hosts may take as their gateway. One network exists in a run.
func (r Run) CreateNetwork(address netip.Prefix) (*Network, error) {
	hub, err := r.CreateNamespace(hubName)
	if err != nil {
		return nil, err
	}
	if err := hub.Isolate(); err != nil {
		return nil, errors.Join(err, hub.Remove())
	}
	if err := hub.Bridge(bridge, address); err != nil {
		return nil, errors.Join(err, hub.Remove())
	}
	return &Network{run: r, hub: hub}, nil
}

// Hub is the namespace that holds the bridge. It belongs to the network.
func (w *Network) Hub() *Namespace { return w.hub }

// Attach makes a host: a namespace, which the caller owns, with eth0 on the bridge. It is not safe for concurrent use.
func (w *Network) Attach(name string, addresses ...netip.Prefix) (*Namespace, error) {
	host, err := w.run.CreateNamespace(name)
	if err != nil {
		return nil, err
	}
	w.hosts++
	err = host.Isolate()
	if err == nil {
		err = Cable(Port{In: w.hub, Name: fmt.Sprintf("host%d", w.hosts), Bridge: bridge}, Port{In: host, Name: "eth0", Addresses: addresses})
	}
	if err == nil {
		err = host.Route(netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.Addr{}, "eth0")
	}
	if err != nil {
		return nil, errors.Join(err, host.Remove())
	}
	return host, nil
}

// Remove removes the bridge, and with it the cables of all hosts.
func (w *Network) Remove() error { return w.hub.Remove() }

// Isolate turns off what a namespace of ours must not do: forward, speak IPv6 (it would pass by what is checked for
// IPv4), and hand bridged frames to the rules for packets, which some kernels switch on in every new namespace.
func (n *Namespace) Isolate() error {
	return errors.Join(
		n.Sysctl("net.ipv4.ip_forward", "0"),
		n.sysctlIfThere("net.ipv6.conf.all.disable_ipv6", "1"),
		n.sysctlIfThere("net.ipv6.conf.default.disable_ipv6", "1"),
		n.sysctlIfThere("net.bridge.bridge-nf-call-iptables", "0"),
	)
}
