package egress

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
)

// Resolver finds the addresses of a name in normal form. What it finds is judged before it is dialed.
type Resolver interface {
	Resolve(ctx context.Context, name string) ([]netip.Addr, error)
}

// System is the resolver of the system.
type System struct{}

// Resolve implements Resolver. The dot at the end keeps search lists from making another name of it.
func (System) Resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	if strings.Contains(name, ".") {
		name += "."
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
}

// maxHostsFile bounds a hosts file.
const maxHostsFile = 1 << 20

// HostsFile resolves by a file in the form of hosts(5), and by nothing else. The file is read again when it was replaced; while it
// cannot be read the last content holds. Safe for concurrent use.
type HostsFile struct {
	path string

	mu    sync.Mutex // guards the rest
	seen  os.FileInfo
	names map[string][]netip.Addr
}

// OpenHosts reads the file, which must be good now.
func OpenHosts(path string) (*HostsFile, error) {
	h := &HostsFile{path: path}
	return h, h.refresh()
}

// Resolve implements Resolver.
func (h *HostsFile) Resolve(_ context.Context, name string) ([]netip.Addr, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	_ = h.refresh() // the last good content holds
	if a := h.names[name]; len(a) > 0 {
		return slices.Clone(a), nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}

func (h *HostsFile) refresh() error {
	info, err := os.Stat(h.path)
	if err != nil {
		return err
	}
	if h.seen != nil && os.SameFile(h.seen, info) && h.seen.ModTime().Equal(info.ModTime()) && h.seen.Size() == info.Size() {
		return nil
	}
	if info.Size() > maxHostsFile {
		return fmt.Errorf("%s is larger than %d bytes", h.path, maxHostsFile)
	}
	text, err := os.ReadFile(h.path)
	if err != nil {
		return err
	}
	names, err := parseHosts(text)
	if err != nil {
		return fmt.Errorf("%s: %w", h.path, err)
	}
	h.seen, h.names = info, names
	return nil
}

// parseHosts reads lines of an address and names, with comments after #.
func parseHosts(text []byte) (map[string][]netip.Addr, error) {
	names := map[string][]netip.Addr{}
	n := 0
	for line := range bytes.Lines(text) {
		n++
		line, _, _ = bytes.Cut(line, []byte("#"))
		words := strings.Fields(string(line))
		if len(words) == 0 {
			continue
		}
		addr, err := netip.ParseAddr(words[0])
		if err != nil || addr.Zone() != "" {
			return nil, fmt.Errorf("line %d: %.80q is no IP address", n, words[0])
		}
		for _, w := range words[1:] {
			h, err := ParseName(w)
			if err != nil {
				return nil, fmt.Errorf("line %d: %.80q: %w", n, w, err)
			}
			names[h.Name()] = append(names[h.Name()], addr)
		}
	}
	return names, nil
}
