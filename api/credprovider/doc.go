// Package credprovider is the wire contract with whoever keeps the secrets that are put into an actor's requests,
// generated from the .proto file beside it by tools/protos.sh. It owns names and numbers of fields and nothing else, and
// only the room control may import it. Everything in it is a message, which lives as long as its holder.
package credprovider
