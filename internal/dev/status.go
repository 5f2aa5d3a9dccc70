package dev

import "time"

// Status is what a supervisor says of its network.
type Status struct {
	Run         string      `json:"run"`
	Dir         string      `json:"dir"`
	Supervisor  int         `json:"supervisor"` // process id
	Parts       []Part      `json:"parts"`
	Addresses   []Address   `json:"addresses"`
	Actors      []ActorLine `json:"actors"`
	ActorsError string      `json:"actors_error,omitempty"` // why Actors is not known
}

// Part is a process.
type Part struct {
	Name      string    `json:"name"`
	Namespace string    `json:"namespace"` // as ip netns has it
	PID       int       `json:"pid"`
	Since     time.Time `json:"since"`
	Ended     string    `json:"ended,omitempty"` // how; empty while it runs
	Log       string    `json:"log"`
}

// Address is where something is reached.
type Address struct {
	Name   string `json:"name"`
	Host   string `json:"host"`   // on this machine
	Fabric string `json:"fabric"` // what it leads to
}

// ActorLine is an actor, and where it is.
type ActorLine struct {
	Actor  string `json:"actor"`
	State  string `json:"state"`
	Worker string `json:"worker,omitempty"`
	Reason string `json:"reason,omitempty"` // of a crash
}

// socketOf is where a supervisor listens.
func socketOf(dir string) string { return dir + "/dev.sock" }
