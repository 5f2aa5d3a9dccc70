// Package atelet is a machine's agent of the control plane of actors, for one worker: it takes part as that worker, turns orders
// to start and stop actors into orders of the worker's process, has keys of actors certified for it, and tells which
// actors have ended. What it knows of actors is written down in a directory of the machine, the roster, which the agents of all
// workers of a run share; so actors outlive it, and move between those workers with their memory. It lives as long as its
// process. It touches no namespace, process or network itself, which the worker's process does, and decides nothing about
// who may reach what.
package atelet
