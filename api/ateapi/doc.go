// Package ateapi is the wire contract of the actor control plane: the messages of package ateapi and its services
// Control and WorkerService, generated from the .proto files beside it by tools/protos.sh. It owns names and numbers of
// fields and nothing else: what is valid, who may call and what happens is decided by plain types of other rooms, and
// only the room control translates between the two. Everything in it is a message, which lives as long as its holder.
//
// The methods on tags and access policies are not declared, since the layout of their requests is not published: a
// server that is asked for one answers Unimplemented.
package ateapi
