// Package netns drives the worker's shipped binary as root: it really makes namespaces, rules and confined processes, and
// everything that it makes is gone afterwards. Without root, and on other systems than Linux, its tests skip and say so.
package netns
