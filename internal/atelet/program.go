package atelet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/internal/actor"
)

// imageLocal begins the images that are programs of this machine.
const imageLocal = "local:"

// What an actor has unless its template says otherwise.
const (
	actorProcesses = 128
	actorMemory    = 512 << 20 // bytes
	actorPath      = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// maxProbe is what is left of the control plane's time for an operation, which is 5 minutes.
	maxProbe = 4 * time.Minute
)

// Where actors find what is mounted for them.
const (
	programPlace = "/app"
	trustPlace   = "/ate"
	trustFile    = "ca-bundle.pem"
)

// trustVariables name the file of authorities to the libraries that programs use.
var trustVariables = []string{"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}

// programs make orders of templates.
type programs struct {
	dir   string // of programs
	hosts string // a table in the form of hosts(5), read at each start; empty is none
	trust string // directory that trustFile is in
	infos string // directory for what is written for each actor
	trusts
}

// order makes the order to start an actor. Its errors name the field of the template that is at fault.
func (p *programs) order(a actor.Actor, t actor.Template) (o workerOrder, err error) {
	if n := len(t.Containers); n != 1 {
		return o, fmt.Errorf("containers: are %d, and this worker runs one for an actor", n)
	}
	c := t.Containers[0]
	at := "container " + c.Name + ": "
	program, err := p.find(c.Image)
	if err != nil {
		return o, fmt.Errorf("%simage %.80q: %w", at, c.Image, err)
	}
	o.workerActor = workerActor{a.Ref.String(), a.UID}
	o.Program.Limits, err = limits(t.Resources, c.Resources)
	if err != nil {
		return o, fmt.Errorf("%s%w", at, err)
	}
	if o.Program.Hosts, err = readHosts(p.hosts); err != nil {
		return o, err
	}
	o.Program.Mounts = []workerMount{
		{From: program, To: programPlace + "/" + strings.TrimPrefix(c.Image, imageLocal)},
		{From: p.trust, To: trustPlace},
	}
	mounts, err := p.mounts(a, t, c)
	if err != nil {
		return o, fmt.Errorf("%s%w", at, err)
	}
	o.Program.Mounts = append(o.Program.Mounts, mounts...)
	o.Program.Path, o.Program.Args = o.Program.Mounts[0].To, c.Args
	if len(c.Command) > 0 {
		o.Program.Path = c.Command[0]
		o.Program.Args = append(append([]string{}, c.Command[1:]...), c.Args...)
	}
	o.Program.Env = environment(a, c)
	if c.Probe != nil {
		if c.Probe.Timeout > maxProbe {
			return o, fmt.Errorf("%swakeup_probe.timeout_seconds: at most %d are possible here", at, maxProbe/time.Second)
		}
		o.Probe = workerProbe{Port: c.Probe.Port, Path: c.Probe.Path, Seconds: int(c.Probe.Timeout / time.Second)}
	}
	return o, nil
}

// find returns the path of an image's program. Programs are what lies in one directory and may be executed; links in it
// are followed, since whoever made them could have put the program there as well.
func (p *programs) find(image string) (string, error) {
	name, local := strings.CutPrefix(image, imageLocal)
	if !local {
		return "", fmt.Errorf("this worker pulls no images: use %sPROGRAM, for a program in %s", imageLocal, p.dir)
	}
	if name == "" || name[0] == '.' || filepath.Base(name) != name {
		return "", errors.New("it does not name a program")
	}
	path, err := filepath.EvalSymlinks(filepath.Join(p.dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("there is no program %q in %s", name, p.dir)
	}
	if err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o001 == 0 {
		return "", fmt.Errorf("%s is no file that everybody may execute", filepath.Join(p.dir, name))
	}
	return path, nil
}

// environment is what a program is told. What the template says comes last and wins.
func environment(a actor.Actor, c actor.Container) []string {
	env := map[string]string{
		"PATH": actorPath, "HOME": "/tmp", "LANG": "C.UTF-8",
		"ATE_ATESPACE": a.Atespace, "ATE_ACTOR_NAME": a.Name, "ATE_ACTOR_UID": a.UID,
	}
	for _, name := range trustVariables {
		env[name] = trustPlace + "/" + trustFile
	}
	for _, e := range c.Env {
		env[e.Name] = e.Value
	}
	return sorted(env)
}

// limits are the smallest of those that the template and its container set.
func limits(all ...[]actor.Limit) (workerLimits, error) {
	out := workerLimits{Processes: actorProcesses, Memory: actorMemory}
	set := false
	for _, list := range all {
		for _, l := range list {
			if l.Name != "memory" {
				return out, fmt.Errorf("resources: this worker bounds memory alone, not %.80q", l.Name)
			}
			n, err := quantity(l.Quantity)
			if err != nil {
				return out, fmt.Errorf("resources: memory %.80q: %w", l.Quantity, err)
			}
			if !set || n < out.Memory {
				out.Memory, set = n, true
			}
		}
	}
	return out, nil
}

// units of amounts, as Kubernetes writes them.
var units = []struct {
	suffix string
	bytes  int64
}{{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40}, {"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"", 1}}

// leastMemory is what a process needs to become an actor at all, in bytes.
const leastMemory = 4 << 20

// quantity reads a whole amount of bytes.
func quantity(s string) (int64, error) {
	for _, u := range units {
		digits, ok := strings.CutSuffix(s, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || int64(n) > (1<<62)/u.bytes {
			return 0, errors.New("must be a whole number of bytes with no suffix, or Ki, Mi, Gi, Ti, k, M, G, T")
		}
		if int64(n)*u.bytes < leastMemory {
			return 0, fmt.Errorf("is less than %d bytes", leastMemory)
		}
		return int64(n) * u.bytes, nil
	}
	return 0, nil // not reached: every text ends in nothing
}
