// Package peers holds the gateway against programs that others wrote: their servers behind it, their clients before it,
// and peers that leave, reset and flood. It owns only tests; they live for one run, on loopback, and know nothing of the
// gateway but its library, its log and its metrics.
package peers
