package actor

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// Bounds of a template and of a selector.
const (
	MaxContainers = 10
	MaxVolumes    = 32
	MaxSelector   = 10  // labels
	MaxStrings    = 128 // of a command, of its arguments, of an environment, of mounts
	maxString     = 4096
	maxLabelValue = 253
	maxSources    = 8 // of a volume, and trust bundles of a source
)

// DefaultProbeTimeout is how long a wakeup probe may take that does not say.
const DefaultProbeTimeout = 30 * time.Second

// Template describes actors. Check says what is wrong with it.
type Template struct {
	Ref  `json:"-"`
	Meta `json:"-"`
	// Selector are labels that a worker must have, beside the actor's own.
	Selector   map[string]string `json:"selector,omitempty"`
	Containers []Container       `json:"containers"`
	Volumes    []Volume          `json:"volumes,omitempty"`
	Resources  []Limit           `json:"resources,omitempty"`
	Snapshot   Snapshot          `json:"snapshot,omitzero"`
	Sandbox    Sandbox           `json:"sandbox,omitzero"`
}

// Container is one program of an actor.
type Container struct {
	Name      string   `json:"name"`
	Image     string   `json:"image"`
	Command   []string `json:"command,omitempty"`
	Args      []string `json:"args,omitempty"`
	Env       []EnvVar `json:"env,omitempty"`
	Probe     *Probe   `json:"probe,omitempty"`
	Mounts    []Mount  `json:"mounts,omitempty"`
	Resources []Limit  `json:"resources,omitempty"`
}

// EnvVar is one environment variable.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Probe is a GET that must be answered with 200 before an actor counts as running.
type Probe struct {
	Path    string        `json:"path"`
	Port    uint16        `json:"port"`
	Timeout time.Duration `json:"timeout"` // whole seconds, 1 s to 1 h
}

// Mount is a volume in a container.
type Mount struct {
	Volume string `json:"volume"`
	Path   string `json:"path"`
}

// Volume is a directory that containers mount. Exactly one of DurableDir and SystemInfo is set.
type Volume struct {
	Name       string       `json:"name"`
	DurableDir bool         `json:"durable_dir,omitempty"` // outlives suspension
	SystemInfo []DataSource `json:"system_info,omitempty"` // written at each run and restore
}

// DataSource writes files. Exactly one of Items and Bundles is set.
type DataSource struct {
	Items   []MetadataItem `json:"items,omitempty"`
	Bundles []string       `json:"bundles,omitempty"` // names of trust bundles, all into the file Path
	Path    string         `json:"path,omitempty"`
}

// MetadataItem writes a fact about the actor to a file.
type MetadataItem struct {
	Field MetadataField `json:"field"`
	Path  string        `json:"path"`
}

// MetadataField is a fact about an actor. The values are those of the wire.
type MetadataField int32

// Facts.
const (
	FieldName MetadataField = iota + 1
	FieldAtespace
	FieldUID
)

// Limit is an amount of "cpu" or "memory", as Kubernetes writes them. It is kept for the worker and not read here.
type Limit struct {
	Name     string `json:"name"`
	Quantity string `json:"quantity"`
}

// Snapshot says what is kept of a suspended actor, and where. It is kept for the worker and not read here.
type Snapshot struct {
	OnCommit int32  `json:"on_commit,omitempty"` // a SnapshotContentScope of the wire
	Location string `json:"location,omitempty"`
}

// Sandbox chooses the confinement. It is kept for the worker and not read here.
type Sandbox struct {
	Class  int32  `json:"class,omitempty"` // a SandboxClass of the wire
	Config string `json:"config,omitempty"`
}

// WithDefaults returns the template with the time limits of probes written out. It shares everything else with t.
func (t Template) WithDefaults() Template {
	t.Containers = slices.Clone(t.Containers)
	for i, c := range t.Containers {
		if c.Probe != nil && c.Probe.Timeout == 0 {
			p := *c.Probe
			p.Timeout = DefaultProbeTimeout
			t.Containers[i].Probe = &p
		}
	}
	return t
}

// Check returns what is wrong with a template that a message holds in a field.
func (t Template) Check(field string) error {
	var f Faults
	f = append(f, t.Ref.Check(field+".metadata")...)
	CheckSelector(&f, field+".worker_selector", t.Selector)
	if n := len(t.Containers); n < 1 || n > MaxContainers {
		f.Add(field+".containers", "are %d, must be 1 to %d", n, MaxContainers)
	}
	if n := len(t.Volumes); n > MaxVolumes {
		f.Add(field+".volumes", "are %d, at most %d are allowed", n, MaxVolumes)
	}
	if len(f) > 0 {
		return f.Err() // what comes now is bounded
	}
	volumes, names := map[string]bool{}, map[string]bool{}
	for i, v := range t.Volumes {
		at := fmt.Sprintf("%s.volumes[%d]", field, i)
		f.uniqueName(at+".name", v.Name, volumes)
		v.check(&f, at)
	}
	for i, c := range t.Containers {
		at := fmt.Sprintf("%s.containers[%d]", field, i)
		f.uniqueName(at+".name", c.Name, names)
		c.check(&f, at, volumes)
	}
	f.bounded(field+".snapshot_config.storage_location", t.Snapshot.Location)
	f.bounded(field+".sandbox_config.config_name", t.Sandbox.Config)
	checkLimits(&f, field+".resources", t.Resources)
	return f.Err()
}

// CheckSelector adds what is wrong with labels that a worker must have. None is nothing wrong.
func CheckSelector(f *Faults, field string, labels map[string]string) {
	if len(labels) > MaxSelector {
		f.Add(field+".match_labels", "are %d, at most %d are allowed", len(labels), MaxSelector)
		return
	}
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		if k == "" || len(k) > maxLabelValue || len(labels[k]) > maxLabelValue {
			f.Add(field+".match_labels", "%.80q: keys are 1 to %d bytes, values at most that", k, maxLabelValue)
		}
	}
}

func (c Container) check(f *Faults, at string, volumes map[string]bool) {
	if c.Image == "" {
		f.Add(at+".image", "is required")
	}
	f.bounded(at+".image", c.Image)
	f.boundedAll(at+".command", c.Command)
	f.boundedAll(at+".args", c.Args)
	if p := c.Probe; p != nil {
		if !strings.HasPrefix(p.Path, "/") || len(p.Path) > maxString || strings.ContainsFunc(p.Path, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			f.Add(at+".wakeup_probe.http_get.path", "must be a path in visible ASCII that begins with a slash")
		}
		if p.Port == 0 {
			f.Add(at+".wakeup_probe.http_get.port", "must be 1 to 65535")
		}
		if p.Timeout != 0 && (p.Timeout < time.Second || p.Timeout > time.Hour) {
			f.Add(at+".wakeup_probe.timeout_seconds", "must be 1 to 3600")
		}
	}
	checkLimits(f, at+".resources", c.Resources)
	if len(c.Env) > MaxStrings || len(c.Mounts) > MaxStrings {
		f.Add(at, "has %d variables and %d mounts, at most %d of each are allowed", len(c.Env), len(c.Mounts), MaxStrings)
		return
	}
	for i, e := range c.Env {
		if e.Name == "" || strings.ContainsAny(e.Name, "=\x00") {
			f.Add(fmt.Sprintf("%s.env[%d].name", at, i), "%.80q is no name of a variable", e.Name)
		}
		f.bounded(fmt.Sprintf("%s.env[%d].name", at, i), e.Name)
		f.bounded(fmt.Sprintf("%s.env[%d].value", at, i), e.Value)
	}
	for i, m := range c.Mounts {
		where := fmt.Sprintf("%s.volume_mounts[%d]", at, i)
		if !volumes[m.Volume] {
			f.Add(where+".name", "there is no volume %.80q", m.Volume)
		}
		if !path.IsAbs(m.Path) || path.Clean(m.Path) != m.Path || m.Path == "/" || strings.ContainsRune(m.Path, 0) {
			f.Add(where+".mount_path", "%.80q is not absolute in its shortest form", m.Path)
		}
		f.bounded(where+".mount_path", m.Path)
	}
}

func (v Volume) check(f *Faults, at string) {
	if v.DurableDir == (v.SystemInfo != nil) {
		f.Add(at, "must have exactly one of durable_dir and system_info")
	}
	if n := len(v.SystemInfo); v.SystemInfo != nil && (n < 1 || n > maxSources) {
		f.Add(at+".system_info.data_sources", "are %d, must be 1 to %d", n, maxSources)
		return
	}
	for i, s := range v.SystemInfo {
		s.check(f, fmt.Sprintf("%s.system_info.data_sources[%d]", at, i))
	}
}

func (s DataSource) check(f *Faults, at string) {
	switch {
	case (s.Items == nil) == (s.Bundles == nil):
		f.Add(at, "must have exactly one of actor_metadata and trust_bundle")
	case s.Items != nil:
		if n := len(s.Items); n < 1 || n > maxSources {
			f.Add(at+".actor_metadata.items", "are %d, must be 1 to %d", n, maxSources)
			return
		}
		for i, item := range s.Items {
			where := fmt.Sprintf("%s.actor_metadata.items[%d]", at, i)
			if item.Field < FieldName || item.Field > FieldUID {
				f.Add(where+".field", "%d is not known", item.Field)
			}
			f.localPath(where+".path", item.Path)
		}
	default:
		if n := len(s.Bundles); n < 1 || n > maxSources {
			f.Add(at+".trust_bundle.names", "are %d, must be 1 to %d", n, maxSources)
			return
		}
		f.boundedAll(at+".trust_bundle.names", s.Bundles)
		f.localPath(at+".trust_bundle.path", s.Path)
	}
}

func checkLimits(f *Faults, at string, limits []Limit) {
	seen := map[string]bool{}
	for i, l := range limits {
		if l.Name != "cpu" && l.Name != "memory" || seen[l.Name] || l.Quantity == "" || len(l.Quantity) > 64 {
			f.Add(fmt.Sprintf("%s.limits[%d]", at, i), "%.80q: an amount of cpu or memory, each once", l.Name)
		}
		seen[l.Name] = true
		if f.Full() {
			return
		}
	}
}

// localPath adds a fault unless p is a path below where it is to be, in its shortest form.
func (f *Faults) localPath(at, p string) {
	if p == "" || path.IsAbs(p) || path.Clean(p) != p || p == "." || p == ".." || strings.HasPrefix(p, "../") || strings.ContainsRune(p, 0) {
		f.Add(at, "%.80q is not a relative path in its shortest form that stays below", p)
	}
	f.bounded(at, p)
}

func (f *Faults) uniqueName(at, name string, seen map[string]bool) {
	if !ValidName(name) {
		f.Add(at, nameReason, name)
	} else if seen[name] {
		f.Add(at, "%q is there already", name)
	}
	seen[name] = true
}

func (f *Faults) bounded(at, s string) {
	if len(s) > maxString {
		f.Add(at, "has %d bytes, at most %d are allowed", len(s), maxString)
	}
}

func (f *Faults) boundedAll(at string, all []string) {
	if len(all) > MaxStrings {
		f.Add(at, "are %d, at most %d are allowed", len(all), MaxStrings)
		return
	}
	for i, s := range all {
		f.bounded(fmt.Sprintf("%s[%d]", at, i), s)
	}
}
