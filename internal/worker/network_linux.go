package worker

import (
	"errors"
	"net/netip"

	"github.com/sluice-proxy/sluice/internal/fabric"
)

// The network of every actor is the same. It exists once for each actor, and its addresses mean something inside only.
var (
	subnet         = netip.MustParsePrefix("169.254.17.0/30")
	gatewayAddress = netip.MustParseAddr("169.254.17.1")
	actorAddress   = netip.MustParseAddr("169.254.17.2")
)

// CapturePort is where captured connections are accepted, in the gateway namespace of their actor.
const CapturePort = 15001

// Names of the two ends of an actor's cable.
const (
	actorLink   = "eth0"
	gatewayLink = "atside"
)

// Network is the network of one actor: the namespace it lives in, with nothing but a loopback interface and one cable,
// and the namespace at the other end of that cable, from which no route leads on. What an actor sends ends there, unless
// it is captured. It lives until it is removed, and may be handed from one worker to another on the same machine.
type Network struct {
	Actor   *fabric.Namespace
	Gateway *fabric.Namespace
}

// gatewayName follows the convention of other workers of the same contract.
func gatewayName(name string) string { return name + "-at" }

// CreateNetwork makes the network under a name of at most 45 characters.
func CreateNetwork(r fabric.Run, name string) (*Network, error) {
	gateway, err := r.CreateNamespace(gatewayName(name))
	if err != nil {
		return nil, err
	}
	actor, err := r.CreateNamespace(name)
	if err != nil {
		return nil, errors.Join(err, gateway.Remove())
	}
	n := &Network{Actor: actor, Gateway: gateway}
	if err := n.build(); err != nil {
		return nil, errors.Join(err, n.Remove())
	}
	return n, nil
}

func (n *Network) build() error {
	if err := errors.Join(settings(n.Actor), settings(n.Gateway)); err != nil {
		return err
	}
	err := fabric.Cable(
		fabric.Port{In: n.Gateway, Name: gatewayLink, Addresses: []netip.Prefix{netip.PrefixFrom(gatewayAddress, subnet.Bits())}},
		fabric.Port{In: n.Actor, Name: actorLink, Addresses: []netip.Prefix{netip.PrefixFrom(actorAddress, subnet.Bits())}},
	)
	if err != nil {
		return err
	}
	return n.Actor.Route(netip.PrefixFrom(netip.IPv4Unspecified(), 0), gatewayAddress, actorLink)
}

// settings of both namespaces, besides isolation. An actor may listen on port 80 without privileges that it does not have.
func settings(n *fabric.Namespace) error {
	errs := []error{n.Isolate()}
	for _, s := range [][2]string{
		{"net.ipv4.ip_unprivileged_port_start", "0"},
		{"net.ipv4.conf.all.rp_filter", "0"},
		{"net.ipv4.conf.default.rp_filter", "0"},
		{"net.ipv4.conf.all.route_localnet", "0"},
		{"net.ipv4.conf.all.accept_redirects", "0"},
		{"net.ipv4.conf.all.send_redirects", "0"},
		{"net.ipv4.tcp_tw_reuse", "1"}, // else 28232 connections a minute to a server that does not end them first
	} {
		errs = append(errs, n.Sysctl(s[0], s[1]))
	}
	return errors.Join(errs...)
}

// OpenNetwork returns the network that another handle, maybe of another process, has left.
func OpenNetwork(r fabric.Run, name string) (*Network, error) {
	gateway, err := r.OpenNamespace(gatewayName(name))
	if err != nil {
		return nil, err
	}
	actor, err := r.OpenNamespace(name)
	if err != nil {
		return nil, errors.Join(err, gateway.Close())
	}
	return &Network{Actor: actor, Gateway: gateway}, nil
}

// Close gives the handles up; the network stays.
func (n *Network) Close() error { return errors.Join(n.Actor.Close(), n.Gateway.Close()) }

// Remove removes the network with its rules. The processes inside must have gone.
func (n *Network) Remove() error { return errors.Join(n.Actor.Remove(), n.Gateway.Remove()) }
