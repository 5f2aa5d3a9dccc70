package control

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sluice-proxy/sluice/api/ateapi"
	"github.com/sluice-proxy/sluice/internal/actor"
)

// What is in this file makes messages of plain types. Nothing can fail.

func encodeRef(r actor.Ref) *ateapi.ObjectRef {
	return &ateapi.ObjectRef{Atespace: r.Atespace, Name: r.Name}
}

func encodeTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func encodeMeta(r actor.Ref, m actor.Meta) *ateapi.ResourceMetadata {
	return &ateapi.ResourceMetadata{
		Atespace: r.Atespace, Name: r.Name, Uid: m.UID, Version: m.Version,
		CreateTime: encodeTime(m.Created), UpdateTime: encodeTime(m.Updated),
	}
}

func encodeSelector(labels map[string]string) *ateapi.Selector {
	if len(labels) == 0 {
		return nil
	}
	return &ateapi.Selector{MatchLabels: labels}
}

func encodeActor(a actor.Actor) *ateapi.Actor {
	status := &ateapi.ActorStatus{State: ateapi.ActorState(a.State), AssignedNode: a.Node}
	if w := a.Assignment; w != nil {
		status.WorkerAssignment = &ateapi.WorkerAssignment{
			WorkerNamespace: w.Namespace, WorkerPool: w.Pool, WorkerPod: w.Pod, WorkerPodUid: w.PodUID, WorkerPodIps: encodeAddrs(w.Place),
			Worker: &ateapi.ObjectRef{Name: w.Worker}, NodeName: w.Node, WorkerEpoch: w.Epoch, WorkerSpiffeId: w.ID,
		}
	}
	if a.State == actor.Crashed {
		status.Crash = &ateapi.ActorCrash{Message: a.Crash, CrashTime: encodeTime(a.CrashTime)}
	}
	return &ateapi.Actor{
		Metadata: encodeMeta(a.Ref, a.Meta), ActorTemplate: encodeRef(a.Template), WorkerSelector: encodeSelector(a.Selector), Status: status,
	}
}

func encodeAddrs(p actor.Place) []string {
	var out []string
	for _, a := range p.Addrs {
		out = append(out, a.String())
	}
	return out
}

func encodeLimits(limits []actor.Limit) *ateapi.Resources {
	if len(limits) == 0 {
		return nil
	}
	out := &ateapi.Resources{}
	for _, l := range limits {
		out.Limits = append(out.Limits, &ateapi.Limits{Name: l.Name, Quantity: l.Quantity})
	}
	return out
}

func encodeCapacity(c actor.Capacity) *ateapi.WorkerResources {
	return &ateapi.WorkerResources{Actors: int32(c.Actors), Resources: encodeLimits(c.Resources)}
}

func encodeHardware(attributes map[string]string) *ateapi.HardwareIdentity {
	if len(attributes) == 0 {
		return nil
	}
	return &ateapi.HardwareIdentity{Attributes: attributes}
}

func encodeWorker(w actor.Worker) *ateapi.Worker {
	state := ateapi.WorkerState_WORKER_STATE_ACTIVE
	if w.Draining {
		state = ateapi.WorkerState_WORKER_STATE_DRAINING
	}
	return &ateapi.Worker{
		Metadata: encodeMeta(actor.Ref{Name: w.Name}, w.Meta), WorkerNamespace: w.Namespace, WorkerPool: w.Pool, WorkerPod: w.Pod,
		WorkerPodUid: w.PodUID, NodeName: w.Node, Ips: encodeAddrs(w.Place), SandboxClass: w.SandboxClass, Labels: w.Labels, Epoch: w.Epoch,
		Status: &ateapi.WorkerStatus{
			State: state, Capacity: encodeCapacity(w.Capacity), Allocated: &ateapi.WorkerResources{Actors: int32(w.Hosted)},
			ObservedEpoch: w.Epoch, Hardware: encodeHardware(w.Hardware),
		},
	}
}

func encodeHosted(a actor.Actor) *ateapi.ActorAssignment {
	out := &ateapi.ActorAssignment{
		Actor: encodeRef(a.Ref), ActorUid: a.UID, ActorTemplateRef: encodeRef(a.Template), Metadata: &ateapi.ResourceMetadata{Name: a.UID},
	}
	if a.Assignment != nil {
		out.WorkerEpoch = a.Assignment.Epoch
	}
	return out
}

func encodeAtespace(n actor.Named) *ateapi.Atespace {
	return &ateapi.Atespace{Metadata: encodeMeta(actor.Ref{Name: n.Name}, n.Meta)}
}

func encodeTemplate(t actor.Template) *ateapi.ActorTemplate {
	out := &ateapi.ActorTemplate{
		Metadata: encodeMeta(t.Ref, t.Meta), WorkerSelector: encodeSelector(t.Selector), Resources: encodeLimits(t.Resources),
	}
	if t.Snapshot != (actor.Snapshot{}) {
		out.SnapshotConfig = &ateapi.SnapshotConfig{OnCommit: ateapi.SnapshotContentScope(t.Snapshot.OnCommit), StorageLocation: t.Snapshot.Location}
	}
	if t.Sandbox != (actor.Sandbox{}) {
		out.SandboxConfig = &ateapi.SandboxConfig{SandboxClass: ateapi.SandboxClass(t.Sandbox.Class), ConfigName: t.Sandbox.Config}
	}
	for _, c := range t.Containers {
		out.Containers = append(out.Containers, encodeContainer(c))
	}
	for _, v := range t.Volumes {
		out.Volumes = append(out.Volumes, encodeVolume(v))
	}
	return out
}

func encodeContainer(c actor.Container) *ateapi.Container {
	out := &ateapi.Container{Name: c.Name, Image: c.Image, Command: c.Command, Args: c.Args, Resources: encodeLimits(c.Resources)}
	for _, e := range c.Env {
		out.Env = append(out.Env, &ateapi.EnvVar{Name: e.Name, Value: e.Value})
	}
	for _, m := range c.Mounts {
		out.VolumeMounts = append(out.VolumeMounts, &ateapi.VolumeMount{Name: m.Volume, MountPath: m.Path})
	}
	if p := c.Probe; p != nil {
		out.WakeupProbe = &ateapi.ContainerWakeupProbe{
			HttpGet: &ateapi.HTTPGetAction{Path: p.Path, Port: int32(p.Port)}, TimeoutSeconds: int32(p.Timeout / time.Second),
		}
	}
	return out
}

func encodeVolume(v actor.Volume) *ateapi.Volume {
	out := &ateapi.Volume{Name: v.Name}
	if v.DurableDir {
		out.DurableDir = &ateapi.DurableDir{}
	}
	if v.SystemInfo == nil {
		return out
	}
	out.SystemInfo = &ateapi.SystemInfo{}
	for _, s := range v.SystemInfo {
		source := &ateapi.SystemInfoDataSource{}
		if s.Items != nil {
			source.ActorMetadata = &ateapi.ActorMetadataSource{}
			for _, item := range s.Items {
				source.ActorMetadata.Items = append(source.ActorMetadata.Items, &ateapi.ActorMetadataItem{Field: ateapi.ActorMetadataField(item.Field), Path: item.Path})
			}
		}
		if s.Bundles != nil {
			source.TrustBundle = &ateapi.TrustBundleSource{Path: s.Path, Names: s.Bundles}
		}
		out.SystemInfo.DataSources = append(out.SystemInfo.DataSources, source)
	}
	return out
}
