package entrypoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/config"
)

// address is a listening address, taken apart.
type address struct {
	text string // as configured
	key  string // equal keys are the same socket
	path string // unix socket; "" an IP address
	// tunnel is no address: nothing is listened on, and connections come by Set.Serve.
	tunnel bool
	host   string     // a name to resolve; "" none
	ip     netip.Addr // invalid: every address of both families, or a name
	port   uint16     // 0: the system chooses
	udp    bool       // of datagrams
}

// resolveTimeout bounds the look-up of a name at bind.
const resolveTimeout = 5 * time.Second

// parseAddress takes an address apart. The name of the entrypoint tells apart sockets whose port the system chooses.
func parseAddress(text, entrypoint string) (address, error) {
	a := address{text: text}
	if text == config.TunnelAddress {
		a.tunnel, a.key = true, text+entrypoint
		return a, nil
	}
	if path, ok := strings.CutPrefix(text, "unix:"); ok {
		if path == "" {
			return a, errors.New("unix: needs a path")
		}
		a.path, a.key = path, "unix:"+path
		return a, nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return a, errors.New("is not host:port or unix:/path")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return a, fmt.Errorf("port %q is not a number up to 65535", port)
	}
	a.port = uint16(n)
	if host != "" {
		if a.ip, err = netip.ParseAddr(host); err != nil {
			a.host = strings.ToLower(host)
		} else {
			a.ip = a.ip.Unmap()
			host = a.ip.String()
		}
	}
	a.key = net.JoinHostPort(strings.ToLower(host), strconv.Itoa(int(a.port)))
	if a.port == 0 {
		a.key += "/" + entrypoint
	}
	return a, nil
}

// addressOf is the address that an entrypoint wants.
func addressOf(o *Options, entrypoint string) (address, error) {
	a, err := parseAddress(o.Address, entrypoint)
	if err != nil || o.Datagrams == nil {
		return a, err
	}
	if a.path != "" {
		return a, errors.New("is a unix socket, which has no datagrams")
	}
	a.udp, a.key = true, "udp:"+a.key
	return a, nil
}

// resolve replaces a name by its address.
func (a *address) resolve(ctx context.Context) error {
	if a.host == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", a.host)
	if err != nil {
		return fmt.Errorf("resolving %s: %w", a.host, err)
	}
	for _, ip := range ips {
		if ip = ip.Unmap(); ip.Is4() {
			a.ip = ip
			return nil
		}
		if !a.ip.IsValid() {
			a.ip = ip
		}
	}
	if !a.ip.IsValid() {
		return fmt.Errorf("resolving %s: no address", a.host)
	}
	return nil
}

// network and literal are what the standard library's Listen takes for a resolved address.
func (a *address) network() string {
	switch {
	case a.path != "":
		return "unix"
	case !a.ip.IsValid():
		return "tcp"
	case a.ip.Is4():
		return "tcp4"
	default:
		return "tcp6"
	}
}

func (a *address) literal() string {
	if a.path != "" {
		return a.path
	}
	host := ""
	if a.ip.IsValid() {
		host = a.ip.String()
	}
	return net.JoinHostPort(host, strconv.Itoa(int(a.port)))
}

// overlaps reports whether the kernel would refuse to bind a while the socket bound to other exists, although the two
// are written differently.
func (a *address) overlaps(other net.Addr) bool {
	var at netip.AddrPort
	switch o := other.(type) {
	case *net.TCPAddr:
		if a.udp {
			return false
		}
		at = o.AddrPort()
	case *net.UDPAddr:
		if !a.udp {
			return false
		}
		at = o.AddrPort()
	}
	if !at.IsValid() || a.path != "" || a.port == 0 || a.port != at.Port() {
		return false
	}
	o := at.Addr().Unmap()
	return !a.ip.IsValid() || a.ip.IsUnspecified() || o.IsUnspecified() || a.ip == o
}

// is reports whether bound is what binding the resolved address a would give.
func (a *address) is(bound net.Addr) bool {
	switch b := bound.(type) {
	case *net.UnixAddr:
		return a.path != "" && a.path == b.Name
	case *net.TCPAddr:
		return a.path == "" && !a.udp && a.matches(b.AddrPort())
	case *net.UDPAddr:
		return a.udp && a.matches(b.AddrPort())
	}
	return false
}

// matches compares an address of the Internet with a bound one.
func (a *address) matches(bound netip.AddrPort) bool {
	ip := bound.Addr().Unmap()
	if a.port != 0 && a.port != bound.Port() {
		return false
	}
	if !a.ip.IsValid() {
		return ip.IsUnspecified()
	}
	return a.ip == ip
}
