// Package atenetx is what our own control plane and our own workers say to each other beyond the published contract: the
// service Host, generated from the .proto file beside it by tools/protos.sh. It owns names and numbers of fields and
// nothing else, and only the room control may import it. Everything in it is a message, which lives as long as its holder.
package atenetx
