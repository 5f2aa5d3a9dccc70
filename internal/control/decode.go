package control

import (
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/internal/actor"
)

// What is in this file makes plain types of messages, whoever has sent them. What a plain type cannot hold is a refusal with
// the code InvalidArgument; what is only not carried, Unimplemented. A nil message is an empty one.

func decodeRef(r *ateapi.ObjectRef) actor.Ref {
	return actor.Ref{Atespace: r.GetAtespace(), Name: r.GetName()}
}

// metadata is what every resource has.
type metadata interface {
	GetMetadata() *ateapi.ResourceMetadata
}

func decodeMeta(m metadata) (actor.Ref, actor.Meta) {
	d := m.GetMetadata()
	return actor.Ref{Atespace: d.GetAtespace(), Name: d.GetName()}, actor.Meta{
		UID: d.GetUid(), Version: d.GetVersion(), Created: decodeTime(d.GetCreateTime()), Updated: decodeTime(d.GetUpdateTime()),
	}
}

// termsOf are the terms of an update, which are in the metadata of what is to be.
func termsOf(m metadata) actor.Terms {
	d := m.GetMetadata()
	return actor.Terms{UID: d.GetUid(), Version: d.GetVersion()}
}

func decodeOptions(o *ateapi.DeleteOptions) actor.Terms {
	return actor.Terms{UID: o.GetUid(), Version: o.GetVersion()}
}

func decodeTime(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// global refuses an atespace in the name of what belongs to none.
func global(field string, r actor.Ref) error {
	if r.Atespace != "" {
		return actor.Refuse(actor.InvalidArgument, "%s.atespace: must be empty", field)
	}
	return nil
}

func decodeActor(m *ateapi.Actor) (a actor.Actor, err error) {
	a.Ref, a.Meta = decodeMeta(m)
	a.Template, a.Selector = decodeRef(m.GetActorTemplate()), m.GetWorkerSelector().GetMatchLabels()
	s := m.GetStatus()
	a.State, a.Node = actor.State(s.GetState()), s.GetAssignedNode()
	a.Crash, a.CrashTime = s.GetCrash().GetMessage(), decodeTime(s.GetCrash().GetCrashTime())
	w := s.GetWorkerAssignment()
	if w == nil {
		return a, nil
	}
	a.Assignment = &actor.Assignment{Worker: w.GetWorker().GetName(), Epoch: w.GetWorkerEpoch(), Place: actor.Place{
		Namespace: w.GetWorkerNamespace(), Pool: w.GetWorkerPool(), Pod: w.GetWorkerPod(), PodUID: w.GetWorkerPodUid(), Node: w.GetNodeName(), ID: w.GetWorkerSpiffeId(),
	}}
	a.Assignment.Addrs, err = decodeAddrs("actor.status.worker_assignment.worker_pod_ips", w.GetWorkerPodIps())
	return a, err
}

func decodeAddrs(field string, texts []string) ([]netip.Addr, error) {
	if len(texts) > 2 {
		return nil, actor.Refuse(actor.InvalidArgument, "%s: are %d, at most 2 are allowed", field, len(texts))
	}
	var out []netip.Addr
	for i, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
			return nil, actor.Refuse(actor.InvalidArgument, "%s[%d]: %.80q is no address of a host", field, i, text)
		}
		out = append(out, a.Unmap())
	}
	return out, nil
}

func decodeLimits(r *ateapi.Resources) []actor.Limit {
	var out []actor.Limit
	for _, l := range r.GetLimits() {
		out = append(out, actor.Limit{Name: l.GetName(), Quantity: l.GetQuantity()})
	}
	return out
}

func decodeCapacity(r *ateapi.WorkerResources, h *ateapi.HardwareIdentity) actor.Capacity {
	return actor.Capacity{Actors: int(r.GetActors()), Resources: decodeLimits(r.GetResources()), Hardware: h.GetAttributes()}
}

// decodeWorker reads a worker. It has no identity: that is proven, not said.
func decodeWorker(m *ateapi.Worker) (w actor.Worker, err error) {
	ref, meta := decodeMeta(m)
	s := m.GetStatus()
	w = actor.Worker{
		Name: ref.Name, Meta: meta, Epoch: m.GetEpoch(), Labels: m.GetLabels(), Capacity: decodeCapacity(s.GetCapacity(), s.GetHardware()),
		Draining: s.GetState() == ateapi.WorkerState_WORKER_STATE_DRAINING, Hosted: int(s.GetAllocated().GetActors()), SandboxClass: m.GetSandboxClass(),
		Place: actor.Place{
			Namespace: m.GetWorkerNamespace(), Pool: m.GetWorkerPool(), Pod: m.GetWorkerPod(), PodUID: m.GetWorkerPodUid(), Node: m.GetNodeName(),
		},
	}
	if err := global("worker.metadata", ref); err != nil {
		return w, err
	}
	w.Addrs, err = decodeAddrs("worker.ips", m.GetIps())
	return w, err
}

func decodeHosted(m *ateapi.ActorAssignment) actor.Actor {
	a := actor.Actor{Ref: decodeRef(m.GetActor()), Template: decodeRef(m.GetActorTemplateRef())}
	a.UID = m.GetActorUid()
	a.Assignment = &actor.Assignment{Epoch: m.GetWorkerEpoch()}
	return a
}

// decodeTemplate reads a template. One that holds a field that is not known is refused as a whole.
func decodeTemplate(m *ateapi.ActorTemplate) (t actor.Template, err error) {
	const field = "actor_template"
	var unknown actor.Faults
	findUnknown(&unknown, field, m.ProtoReflect())
	if err := unknown.Err(); err != nil {
		return t, actor.Refuse(actor.InvalidArgument, "%v", err)
	}
	t.Ref, t.Meta = decodeMeta(m)
	t.Selector, t.Resources = m.GetWorkerSelector().GetMatchLabels(), decodeLimits(m.GetResources())
	t.Snapshot = actor.Snapshot{OnCommit: int32(m.GetSnapshotConfig().GetOnCommit()), Location: m.GetSnapshotConfig().GetStorageLocation()}
	t.Sandbox = actor.Sandbox{Class: int32(m.GetSandboxConfig().GetSandboxClass()), Config: m.GetSandboxConfig().GetConfigName()}
	if m.GetDefaultEgressPolicy() != nil {
		return t, actor.Refuse(actor.Unimplemented, "%s.default_egress_policy is not supported yet", field)
	}
	for i, c := range m.GetContainers() {
		out, err := decodeContainer(fmt.Sprintf("%s.containers[%d]", field, i), c)
		if err != nil {
			return t, err
		}
		t.Containers = append(t.Containers, out)
	}
	for i, v := range m.GetVolumes() {
		out, err := decodeVolume(fmt.Sprintf("%s.volumes[%d]", field, i), v)
		if err != nil {
			return t, err
		}
		t.Volumes = append(t.Volumes, out)
	}
	return t, nil
}

func decodeContainer(at string, m *ateapi.Container) (actor.Container, error) {
	c := actor.Container{Name: m.GetName(), Image: m.GetImage(), Command: m.GetCommand(), Args: m.GetArgs(), Resources: decodeLimits(m.GetResources())}
	if m.GetSecurityContext() != nil {
		return c, actor.Refuse(actor.Unimplemented, "%s.security_context is not supported yet", at)
	}
	for _, e := range m.GetEnv() {
		c.Env = append(c.Env, actor.EnvVar{Name: e.GetName(), Value: e.GetValue()})
	}
	for _, v := range m.GetVolumeMounts() {
		c.Mounts = append(c.Mounts, actor.Mount{Volume: v.GetName(), Path: v.GetMountPath()})
	}
	if p := m.GetWakeupProbe(); p != nil {
		port := p.GetHttpGet().GetPort()
		if port < 1 || port > 65535 {
			return c, actor.Refuse(actor.InvalidArgument, "%s.wakeup_probe.http_get.port: %d, must be 1 to 65535", at, port)
		}
		c.Probe = &actor.Probe{Path: p.GetHttpGet().GetPath(), Port: uint16(port), Timeout: time.Duration(p.GetTimeoutSeconds()) * time.Second}
	}
	return c, nil
}

func decodeVolume(at string, m *ateapi.Volume) (actor.Volume, error) {
	v := actor.Volume{Name: m.GetName(), DurableDir: m.GetDurableDir() != nil}
	if m.GetExternalVolumeTemplate() != nil || m.GetImage() != nil {
		return v, actor.Refuse(actor.Unimplemented, "%s: external_volume_template and image are not supported yet", at)
	}
	if m.GetSystemInfo() == nil {
		return v, nil
	}
	v.SystemInfo = []actor.DataSource{} // there is one, and it may be empty
	for _, s := range m.GetSystemInfo().GetDataSources() {
		out := actor.DataSource{Path: s.GetTrustBundle().GetPath()}
		if b := s.GetTrustBundle(); b != nil {
			out.Bundles = append([]string{}, b.GetNames()...)
		}
		if a := s.GetActorMetadata(); a != nil {
			out.Items = []actor.MetadataItem{}
			for _, item := range a.GetItems() {
				out.Items = append(out.Items, actor.MetadataItem{Field: actor.MetadataField(item.GetField()), Path: item.GetPath()})
			}
		}
		v.SystemInfo = append(v.SystemInfo, out)
	}
	return v, nil
}
