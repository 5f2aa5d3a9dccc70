package fabric

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
)

// Port is one end of a cable.
type Port struct {
	In        *Namespace
	Name      string // 1 to 15 characters
	Addresses []netip.Prefix
	Bridge    string // the bridge of the namespace that it is plugged into; "" none
}

// Cable connects two namespaces by a pair of virtual Ethernet devices, gives them their addresses and puts them up. On an
// error nothing of it stays.
func Cable(a, b Port) error {
	err := a.In.links(func(h *netlink.Handle) error {
		return h.LinkAdd(&netlink.Veth{
			LinkAttrs:     netlink.LinkAttrs{Name: a.Name, TxQLen: -1},
			PeerName:      b.Name,
			PeerNamespace: netlink.NsFd(int(b.In.file.Fd())),
		})
	})
	if err != nil {
		return fmt.Errorf("connecting %s in %s with %s in %s: %w", a.Name, a.In.name, b.Name, b.In.name, err)
	}
	if err := errors.Join(a.configure(), b.configure()); err != nil {
		return errors.Join(err, a.In.RemoveLink(a.Name))
	}
	return nil
}

func (p Port) configure() error {
	err := p.In.links(func(h *netlink.Handle) error {
		link, err := h.LinkByName(p.Name)
		if err != nil {
			return err
		}
		if p.Bridge != "" {
			bridge, err := h.LinkByName(p.Bridge)
			if err != nil {
				return err
			}
			if err := h.LinkSetMaster(link, bridge); err != nil {
				return err
			}
		}
		if err := addAddresses(h, link, p.Addresses); err != nil {
			return err
		}
		return h.LinkSetUp(link)
	})
	if err != nil {
		return fmt.Errorf("setting up %s in %s: %w", p.Name, p.In.name, err)
	}
	return nil
}

func addAddresses(h *netlink.Handle, link netlink.Link, all []netip.Prefix) error {
	for _, a := range all {
		if err := h.AddrAdd(link, &netlink.Addr{IPNet: ipNet(a)}); err != nil {
			return fmt.Errorf("address %s: %w", a, err)
		}
	}
	return nil
}

// Bridge makes a bridge with addresses of its own and puts it up.
func (n *Namespace) Bridge(name string, addresses ...netip.Prefix) error {
	err := n.links(func(h *netlink.Handle) error {
		link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, TxQLen: -1}}
		if err := h.LinkAdd(link); err != nil {
			return err
		}
		if err := addAddresses(h, link, addresses); err != nil {
			return err
		}
		return h.LinkSetUp(link)
	})
	if err != nil {
		return fmt.Errorf("making bridge %s in %s: %w", name, n.name, err)
	}
	return nil
}

// Up puts a link up.
func (n *Namespace) Up(name string) error {
	err := n.links(func(h *netlink.Handle) error {
		link, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		return h.LinkSetUp(link)
	})
	if err != nil {
		return fmt.Errorf("putting up %s in %s: %w", name, n.name, err)
	}
	return nil
}

// Route sends what goes to dst out of a link: through the next hop via or, if that is not valid, to neighbours there.
func (n *Namespace) Route(dst netip.Prefix, via netip.Addr, name string) error {
	err := n.links(func(h *netlink.Handle) error {
		link, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(dst.Masked()), Scope: netlink.SCOPE_LINK}
		if via.IsValid() {
			route.Gw, route.Scope = via.AsSlice(), netlink.SCOPE_UNIVERSE
		}
		return h.RouteAdd(route)
	})
	if err != nil {
		return fmt.Errorf("adding a route to %s in %s: %w", dst, n.name, err)
	}
	return nil
}

// Links are the names of all links in the namespace.
func (n *Namespace) Links() ([]string, error) {
	var names []string
	err := n.links(func(h *netlink.Handle) error {
		all, err := h.LinkList()
		for _, l := range all {
			names = append(names, l.Attrs().Name)
		}
		return err
	})
	return names, err
}

// RemoveLink removes a link, and the other end of its cable.
func (n *Namespace) RemoveLink(name string) error {
	return n.links(func(h *netlink.Handle) error {
		link, err := h.LinkByName(name)
		if err != nil {
			return err
		}
		return h.LinkDel(link)
	})
}

// links hands fn a socket of the route family inside the namespace.
func (n *Namespace) links(fn func(h *netlink.Handle) error) error {
	return n.Do(func() error {
		h, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer h.Close()
		return fn(h)
	})
}

// Sysctl sets a parameter of the namespace, such as net.ipv4.ip_forward; slashes stand for dots within a name.
func (n *Namespace) Sysctl(key, value string) error {
	path := filepath.Join("/proc/sys", strings.ReplaceAll(key, ".", "/"))
	err := n.Do(func() error { return os.WriteFile(path, []byte(value), 0o644) })
	if err != nil {
		return fmt.Errorf("setting %s in %s: %w", key, n.name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// sysctlIfThere is Sysctl for a parameter of a part that not every kernel has: without the part nothing has to be set.
func (n *Namespace) sysctlIfThere(key, value string) error {
	if err := n.Sysctl(key, value); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
