// Package control is where the messages of the control plane and the plain types of the product meet. It translates, and decides
// nothing but who may call what: [Server] puts the services of the wire over a [Plane], [Client] puts plain methods over a
// connection, and a worker takes part through [Client.Host] and [Hosts], its two ends. It is the only importer of the
// packages below api, and, with the rooms that speak to other programs in their own protocols, of gRPC. Servers, clients
// and hosts live as long as the process. It does not know what keeps actors, or what makes them run.
package control
