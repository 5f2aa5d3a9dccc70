// Package fabric makes networks out of nothing but this machine's kernel: network namespaces, the virtual cables between
// them, and the control groups of the processes that run inside. Everything it makes carries the name of a [Run], so that
// a process that was killed leaves nothing that cannot be found and removed ([Run.Clean]). What it makes in the kernel
// lives until it is removed; the Go values are handles with the lifetime of their holder. It is for the development
// network and for workers, needs root, and exists on Linux only: elsewhere the package is empty. It knows neither actors
// nor traffic, and touches no interface, route or rule of the namespace that its process was started in.
package fabric
