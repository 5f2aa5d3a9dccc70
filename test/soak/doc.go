// Package soak holds the long test of the real binary: load, streams and uploads while the configuration is reloaded
// and the binary replaced again and again. Nothing may fail, and everything must be given back. It has no code outside
// of its tests.
package soak
