package control

import (
	"slices"

	"github.com/sluice-proxy/sluice/internal/actor"
)

// Role is what a caller may do, as a set: one identity may have several roles.
type Role uint8

// Roles.
const (
	// RoleRouter wakes actors.
	RoleRouter Role = 1 << iota
	// RoleEgress reads actors and their policies.
	RoleEgress
	// RoleWorker hosts actors, and asks for certificates of those that it hosts.
	RoleWorker
	// RoleAdmin does everything but what only a host may.
	RoleAdmin
)

// Roles says who has which roles, by SPIFFE ID. Lists hold whole IDs, compared byte for byte.
type Roles struct {
	Router, Egress, Admin []string
	// Domain and WorkerNamespace are the trust domain and the namespace of which every workload is a worker. With an empty
	// one there are no workers. Which worker an identity is, is decided by the first registration of a name.
	Domain, WorkerNamespace string
}

// Of is what an identity may do; 0 is nothing.
func (r Roles) Of(id string) Role {
	var have Role
	for _, x := range []struct {
		list []string
		role Role
	}{{r.Router, RoleRouter}, {r.Egress, RoleEgress}, {r.Admin, RoleAdmin}} {
		if id != "" && slices.Contains(x.list, id) {
			have |= x.role
		}
	}
	if w, err := actor.ParseWorkload(r.Domain, id); err == nil && w.Namespace == r.WorkerNamespace && r.WorkerNamespace != "" {
		have |= RoleWorker
	}
	return have
}

// callers are the roles of which a caller must have one, by method. A method that is not here is nobody's.
var callers = map[string]Role{
	"/ateapi.Control/ResumeActor":          RoleRouter | RoleAdmin,
	"/ateapi.Control/GetActor":             RoleEgress | RoleAdmin,
	"/ateapi.Control/GetActorEgressPolicy": RoleEgress | RoleAdmin,
	// Only the egress gateway may mint actor credentials, not even an admin.
	"/ateapi.Control/MintActorJWT":         RoleEgress,
	"/ateapi.Control/MintActorCertificate": RoleEgress,

	"/ateapi.Control/SuspendActor": RoleAdmin, "/ateapi.Control/PauseActor": RoleAdmin, "/ateapi.Control/RevertActor": RoleAdmin,
	"/ateapi.Control/CreateActor": RoleAdmin, "/ateapi.Control/UpdateActor": RoleAdmin, "/ateapi.Control/DeleteActor": RoleAdmin,
	"/ateapi.Control/ListActors":              RoleAdmin,
	"/ateapi.Control/CreateActorEgressPolicy": RoleAdmin, "/ateapi.Control/UpdateActorEgressPolicy": RoleAdmin, "/ateapi.Control/DeleteActorEgressPolicy": RoleAdmin,
	"/ateapi.Control/CreateAtespace": RoleAdmin, "/ateapi.Control/GetAtespace": RoleAdmin, "/ateapi.Control/DeleteAtespace": RoleAdmin,
	"/ateapi.Control/ListAtespaces":       RoleAdmin,
	"/ateapi.Control/CreateActorTemplate": RoleAdmin, "/ateapi.Control/GetActorTemplate": RoleAdmin, "/ateapi.Control/DeleteActorTemplate": RoleAdmin,
	"/ateapi.Control/ListActorTemplates": RoleAdmin,
	"/ateapi.Control/CreateWorker":       RoleAdmin, "/ateapi.Control/GetWorker": RoleAdmin, "/ateapi.Control/UpdateWorker": RoleAdmin,
	"/ateapi.Control/DrainWorker": RoleAdmin, "/ateapi.Control/DeleteWorker": RoleAdmin, "/ateapi.Control/ListWorkers": RoleAdmin,
	"/ateapi.Control/ListWorkerActorAssignments": RoleAdmin,

	"/ateapi.WorkerService/MintWorkerActorCertificate": RoleWorker, "/ateapi.WorkerService/MintAteomActorCertificate": RoleWorker,
	"/ateapi.WorkerService/RegisterWorker": RoleWorker, "/ateapi.WorkerService/SetWorkerCapacity": RoleWorker,
	"/ateapi.WorkerService/RequestActorSuspend": RoleWorker,
	"/atenetx.Host/Attach":                      RoleWorker,
}

// Allowed reports whether a caller with these roles may call a method, named as on the wire.
func Allowed(have Role, method string) bool { return have&callers[method] != 0 }
