// Package worker runs actors on one machine: each as a confined process whose network has one way out, which leads to the
// egress gateway, and one way in, through tunnels that name it. An [Activation] owns all of that for one stay of one actor:
// namespaces, rules, listener, credentials, process and connections. It is made step by step and undone in reverse, and
// leaves nothing. The worker itself lives as long as its process. It runs beside untrusted code and decides nothing about
// where an actor may go: what carries a captured connection out, and what brings one in, are funcs that it is given.
// Linux only: elsewhere the package is empty.
package worker
