// Package atelet is the wire contract between a worker and the agent of its node: the services WorkerSupport and
// AteomSupport, its earlier name, generated from the .proto file beside it by tools/protos.sh. It owns names and numbers
// of fields and nothing else, and only the room control may import it. Everything in it is a message, which lives as
// long as its holder. The service by which the agent is told to run sandboxes is not part of it.
package atelet
