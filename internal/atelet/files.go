package atelet

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/internal/actor"
)

const (
	maxFile  = 4 << 20 // bytes of a table of hosts, or of authorities
	maxHosts = 4096    // names
)

// readHosts reads a table of the form of hosts(5).
func readHosts(name string) (out []workerHost, err error) {
	if name == "" {
		return nil, nil
	}
	text, err := readBounded(name)
	if err != nil {
		return nil, err
	}
	for i, line := range strings.Split(string(text), "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		address, err := netip.ParseAddr(words[0])
		if err != nil || address.Zone() != "" || len(words) == 1 {
			return nil, fmt.Errorf("%s:%d: must be an address and names", name, i+1)
		}
		for _, w := range words[1:] {
			out = append(out, workerHost{w, address})
		}
		if len(out) > maxHosts {
			return nil, fmt.Errorf("%s: more than %d names", name, maxHosts)
		}
	}
	return out, nil
}

func readBounded(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err == nil && info.Size() > maxFile {
		err = fmt.Errorf("%s has %d bytes, at most %d are read", name, info.Size(), maxFile)
	}
	if err != nil {
		return nil, err
	}
	return os.ReadFile(name)
}

// Names of trust bundles in templates.
const (
	bundleInterception = "egress-mitm.ate.dev"
	bundlePublic       = "system-roots.ate.dev"
)

// publicRoots are where machines keep the authorities of the public.
var publicRoots = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

// trusts are where bundles of authorities come from.
type trusts struct {
	interception string   // file of who signs what the egress gateway shows in the place of origins; empty is nobody
	more         []string // files of whom actors believe besides
}

// bundle is the content of a bundle. The authorities of the public may be missing on a machine, all else not.
func (s trusts) bundle(name string) ([]byte, error) {
	switch name {
	case bundlePublic:
		for _, file := range publicRoots {
			text, err := readBounded(file)
			if !errors.Is(err, fs.ErrNotExist) {
				return text, err
			}
		}
		return nil, nil
	case bundleInterception:
		if s.interception == "" {
			return nil, nil
		}
		return readAuthorities(s.interception)
	}
	return nil, fmt.Errorf("trust bundle %.80q is not known; there are %s and %s", name, bundleInterception, bundlePublic)
}

// all is every authority that actors are to believe.
func (s trusts) all() ([]byte, error) {
	var out bytes.Buffer
	for _, name := range []string{bundlePublic, bundleInterception} {
		text, err := s.bundle(name)
		if err != nil {
			return nil, err
		}
		join(&out, text)
	}
	for _, file := range s.more {
		text, err := readAuthorities(file)
		if err != nil {
			return nil, err
		}
		join(&out, text)
	}
	return out.Bytes(), nil
}

func join(out *bytes.Buffer, text []byte) {
	out.Write(text)
	if len(text) > 0 && text[len(text)-1] != '\n' {
		out.WriteByte('\n')
	}
}

// readAuthorities keeps anything but certificates, a key above all, from what actors read.
func readAuthorities(name string) ([]byte, error) {
	text, err := readBounded(name)
	if err != nil {
		return nil, err
	}
	found := 0
	for rest := text; ; found++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("%s: a PEM block %.40q, and actors would read it: only certificates are allowed", name, block.Type)
		}
	}
	if found == 0 || found != bytes.Count(text, []byte("-----BEGIN")) {
		return nil, fmt.Errorf("%s: no certificate, or one that cannot be read", name)
	}
	return text, nil
}

// project writes a file that actors see, at a path below a directory, unless it has that content. Errors wrap
// actor.ErrUnavailable: they are no fault of the actor's.
func project(below, path string, content []byte) error {
	name := filepath.Join(below, path)
	if have, err := os.ReadFile(name); err == nil && bytes.Equal(have, content) {
		return nil
	}
	dir := filepath.Dir(name)
	err := os.MkdirAll(dir, 0o755)
	for d := dir; err == nil && len(d) >= len(below); d = filepath.Dir(d) {
		err = os.Chmod(d, 0o755) // whatever the mask of this process is, actors must get there
	}
	if err == nil {
		err = replace(name, content, 0o444)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", err, actor.ErrUnavailable)
	}
	return nil
}

// refresh writes the file of authorities of all actors of the machine.
func (p *programs) refresh() error {
	text, err := p.all()
	if err != nil {
		return err
	}
	return project(p.trust, trustFile, text)
}

// mounts writes the volumes that a container mounts, and returns where.
func (p *programs) mounts(a actor.Actor, t actor.Template, c actor.Container) (out []workerMount, err error) {
	for _, m := range c.Mounts {
		i := slices.IndexFunc(t.Volumes, func(v actor.Volume) bool { return v.Name == m.Volume })
		if i < 0 {
			return nil, fmt.Errorf("volume_mounts: there is no volume %.80q", m.Volume)
		}
		v := t.Volumes[i]
		if v.DurableDir {
			return nil, fmt.Errorf("volume %s: durable_dir is not supported by this worker", v.Name)
		}
		if m.Path == programPlace || m.Path == trustPlace || strings.HasPrefix(m.Path, programPlace+"/") || strings.HasPrefix(m.Path, trustPlace+"/") {
			return nil, fmt.Errorf("volume_mounts: %s is in %s or %s, which every actor has", m.Path, programPlace, trustPlace)
		}
		dir := filepath.Join(p.infoDir(a.UID), v.Name)
		if err := p.inform(a, v, dir); err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.Name, err)
		}
		out = append(out, workerMount{From: dir, To: m.Path})
	}
	return out, nil
}

func (p *programs) infoDir(uid string) string { return filepath.Join(p.infos, uid) }

// forget removes what was written for an actor.
func (p *programs) forget(uid string) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	return os.RemoveAll(p.infoDir(uid))
}

// inform writes the facts and bundles of a volume.
func (p *programs) inform(a actor.Actor, v actor.Volume, dir string) error {
	for _, s := range v.SystemInfo {
		for _, item := range s.Items {
			text := map[actor.MetadataField]string{actor.FieldName: a.Name, actor.FieldAtespace: a.Atespace, actor.FieldUID: a.UID}[item.Field]
			if err := project(dir, item.Path, []byte(text)); err != nil {
				return err
			}
		}
		if s.Items != nil {
			continue
		}
		var all bytes.Buffer
		for _, name := range s.Bundles {
			text, err := p.bundle(name)
			if err != nil {
				return err
			}
			join(&all, text)
		}
		if err := project(dir, s.Path, all.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// sorted are variables in the order of their names.
func sorted(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for _, name := range slices.Sorted(maps.Keys(env)) {
		out = append(out, name+"="+env[name])
	}
	return out
}
