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

// order makes the order to start an actor. Its errors name the field of the template that is at fault; what comes with one is
// enough to thaw the actor, unless it names none. That the control plane has checked both is not relied upon: they name files.
func (p *programs) order(a actor.Actor, t actor.Template) (o workerOrder, err error) {
	if err := errors.Join(a.Ref.Check("actor").Err(), checkUID(a.UID)); err != nil {
		return o, err
	}
	o.workerActor = workerActor{a.Ref.String(), a.UID}
	if err := t.Check("actor_template"); err != nil {
		return o, err
	}
	if n := len(t.Containers); n != 1 {
		return o, fmt.Errorf("containers: are %d, and this worker runs one for an actor", n)
	}
	c := t.Containers[0]
	if o.Probe, err = probe(c.Probe); err == nil {
		o.Program, err = p.program(a, t, c)
	}
	if err != nil {
		return o, fmt.Errorf("container %s: %w", c.Name, err)
	}
	return o, nil
}

func probe(p *actor.Probe) (workerProbe, error) {
	if p == nil {
		return workerProbe{}, nil
	}
	if p.Timeout > maxProbe {
		return workerProbe{}, fmt.Errorf("wakeup_probe.timeout_seconds: at most %d are possible here", maxProbe/time.Second)
	}
	return workerProbe{Port: p.Port, Path: p.Path, Seconds: int(p.Timeout / time.Second)}, nil
}

func (p *programs) program(a actor.Actor, t actor.Template, c actor.Container) (o workerProgram, err error) {
	path, err := p.find(c.Image)
	if err != nil {
		return o, fmt.Errorf("image %.80q: %w", c.Image, err)
	}
	if o.Limits, err = limits(t.Resources, c.Resources); err != nil {
		return o, err
	}
	if o.Hosts, err = readHosts(p.hosts); err != nil {
		return o, fmt.Errorf("names for actors: %w: %w", err, actor.ErrUnavailable)
	}
	mounts, err := p.mounts(a, t, c)
	if err != nil {
		return o, err
	}
	o.Path, o.Args = programPlace+"/"+strings.TrimPrefix(c.Image, imageLocal), c.Args
	o.Mounts = append([]workerMount{{From: path, To: o.Path}, {From: p.trust, To: trustPlace}}, mounts...)
	if len(c.Command) > 0 {
		o.Path = c.Command[0]
		o.Args = append(append([]string{}, c.Command[1:]...), c.Args...)
	}
	o.Env = environment(a, c)
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
