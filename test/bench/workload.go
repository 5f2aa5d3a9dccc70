package main

import (
	"fmt"
	"slices"
	"strings"
)

// tool is the client that drives a workload.
type tool string

// The modes of our own client (c/load.c), and wrk, which speaks TLS.
const (
	toolClosed tool = "closed" // closed loop over kept connections
	toolConn   tool = "conn"   // closed loop, a new connection for each request
	toolRate   tool = "rate"   // open loop at a fixed rate
	toolPaced  tool = "paced"  // reader of paced event streams
	toolIdle   tool = "idle"   // connections that stay idle after one request
	toolWrk    tool = "wrk"    // closed loop over TLS
	toolH2     tool = "h2"     // h2load: HTTP/2 over TLS, Streams at a time on each connection

	// The modes of c/handshake.c: a new TLS connection for each request.
	toolFull    tool = "full"
	toolResumed tool = "resumed"

	// The modes of c/echo.c: 32 bytes there and back.
	toolWS  tool = "ws"
	toolTCP tool = "tcp"
	toolUDP tool = "udp"
)

// goal holds the limits of one workload. A zero means that there is no such goal.
type goal struct {
	Must       float64 // CPU at most this multiple of nginx's: what a release holds
	Reach      float64 // the same: what we are after
	Reference  float64 // CPU at most this multiple of the Rust reference's
	Envoy      float64 // CPU at most this multiple of Envoy's
	Throughput float64 // completed units a second at least this multiple of nginx's
	Added      float64 // p50 at most this many microseconds above nginx's
}

// workload is one row of the plan: what is asked of every proxy, and the goals for ours.
type workload struct {
	ID    string
	Title string
	Unit  string // what is counted: request, stream, event
	Tool  tool
	Path  string
	Conns int
	// Streams is how many requests are out at once on each connection, of toolH2.
	Streams int
	GRPC    bool    // toolH2 makes unary calls
	Post    int     // bytes of request body; 0 is a GET
	Body    int     // bytes that each answer's body must have; 0 is any
	Rate    float64 // requests a second, of toolRate
	Warm    float64 // seconds before the measured window
	// Fixed asks for a second phase: latency in an open loop at 70 % of nginx's rate.
	Fixed bool
	// First asks for the time to the first byte of the answer in that phase.
	First bool
	Goal  goal
}

// sseBytes is the length of the upstream's 32 events, without chunk framing.
const sseBytes = 4664

// workloads is the plan, in the order of running. A new row needs nothing else when its
// tool exists; a new tool needs a case in command.
var workloads = []workload{
	{
		ID: "W1", Title: "GET, HTTP/1.1 keep-alive, 42 B, 64 connections", Unit: "request", Tool: toolClosed,
		Path: "/", Conns: 64, Body: 42, Warm: 0.3, Fixed: true,
		Goal: goal{Must: 1.05, Reach: 0.85, Reference: 0.60, Envoy: 0.35, Throughput: 1},
	},
	{
		ID: "W2", Title: "GET over TLS, HTTP/1.1 keep-alive, 42 B, 64 connections", Unit: "request", Tool: toolWrk,
		Path: "/", Conns: 64,
		Goal: goal{Must: 0.90, Reach: 0.75, Reference: 0.80, Envoy: 0.40, Throughput: 1},
	},
	{
		ID: "W3", Title: "GET over HTTP/2 and TLS, 42 B, 4 connections of 16 streams", Unit: "request", Tool: toolH2,
		Path: "/", Conns: 4, Streams: 16,
		Goal: goal{Must: 0.75, Reach: 0.60, Reference: 0.50, Envoy: 0.35, Throughput: 1},
	},
	{
		ID: "W4", Title: "POST of 1 KiB JSON, 64 connections", Unit: "request", Tool: toolClosed,
		Path: "/v1/chat/completions", Conns: 64, Post: 1024, Body: 42, Warm: 0.3, Fixed: true,
		Goal: goal{Must: 1.05, Reach: 0.85, Reference: 0.60, Envoy: 0.30, Throughput: 1},
	},
	{
		ID: "W5", Title: "SSE, 32 events a stream, closed loop, 64 connections", Unit: "stream", Tool: toolClosed,
		Path: "/sse", Conns: 64, Body: sseBytes, Warm: 0.3, Fixed: true, First: true,
		Goal: goal{Must: 1.25, Reach: 0.95, Reference: 0.60, Envoy: 1.00, Throughput: 1},
	},
	{
		ID: "W5p", Title: "SSE, 1000 streams at 30 events a second each", Unit: "event", Tool: toolPaced,
		Path: "/paced", Conns: 1000, Warm: 1.5,
		Goal: goal{Must: 1.05, Reach: 0.90, Reference: 0.90, Envoy: 0.80},
	},
	{
		ID: "W6", Title: "new TCP connection for each request, 64 at a time", Unit: "request", Tool: toolConn,
		Path: "/", Conns: 64, Body: 42, Warm: 0.3,
		Goal: goal{Must: 1.25, Reach: 1.10, Reference: 0.80, Envoy: 0.45, Throughput: 0.9},
	},
	{
		ID: "W6b", Title: "new TLS connection for each request, resumed, 64 at a time", Unit: "request", Tool: toolResumed,
		Path: "/", Conns: 64, Body: 42, Warm: 0.5,
		Goal: goal{Must: 2.10, Reach: 1.70, Reference: 1.35, Envoy: 1.00, Throughput: 0.6},
	},
	{
		ID: "W6f", Title: "new TLS connection for each request, full handshake, 64 at a time", Unit: "request", Tool: toolFull,
		Path: "/", Conns: 64, Body: 42, Warm: 0.5,
		Goal: goal{Must: 1.30, Reach: 1.10},
	},
	{
		ID: "W7", Title: "100 KiB body, 64 connections", Unit: "request", Tool: toolClosed,
		Path: "/big", Conns: 64, Body: 102400, Warm: 0.3, Fixed: true,
		Goal: goal{Must: 0.90, Reach: 0.75, Reference: 0.85, Envoy: 0.50, Throughput: 1},
	},
	{
		ID: "W7b", Title: "100 KiB body over TLS, 64 connections", Unit: "request", Tool: toolWrk,
		Path: "/big", Conns: 64,
		Goal: goal{Must: 1.00, Reach: 0.80, Reference: 1.45, Envoy: 0.80, Throughput: 1},
	},
	{
		ID: "W8a", Title: "WebSocket, 32 bytes there and back, 64 connections", Unit: "message", Tool: toolWS,
		Conns: 64, Warm: 0.3,
		Goal: goal{Must: 1.20, Reach: 1.05, Envoy: 0.75, Throughput: 1},
	},
	{
		ID: "W8b", Title: "TCP, 32 bytes there and back, 64 connections", Unit: "message", Tool: toolTCP,
		Conns: 64, Warm: 0.3,
		Goal: goal{Must: 1.10, Reach: 1.00, Reference: 1.10, Envoy: 0.75, Throughput: 1},
	},
	{
		ID: "W9", Title: "UDP, 32 bytes there and back, 64 flows", Unit: "datagram", Tool: toolUDP,
		Conns: 64, Warm: 0.3,
		Goal: goal{Must: 0.95, Reach: 0.80, Reference: 0.75, Throughput: 1},
	},
	{
		ID: "gRPC", Title: "gRPC unary over TLS, 32 bytes there and back, 4 connections of 16 streams", Unit: "call", Tool: toolH2,
		Path: grpcPath, Conns: 4, Streams: 16, GRPC: true,
		Goal: goal{Must: 0.75, Reach: 0.60, Reference: 0.60, Envoy: 0.40, Throughput: 1},
	},
	{
		ID: "W10", Title: "low rate: 4000 requests a second over 16 connections", Unit: "request", Tool: toolRate,
		Path: "/", Conns: 16, Body: 42, Rate: 4000, Warm: 0.3,
		Goal: goal{Must: 1.00, Reach: 0.90, Reference: 0.60, Envoy: 0.40},
	},
	{
		ID: "L1", Title: "latency: GET over a single connection", Unit: "request", Tool: toolClosed,
		Path: "/", Conns: 1, Body: 42, Warm: 0.3,
		Goal: goal{Added: 10},
	},
}

// idleID names the idle-connection measurement among the workloads of the command line.
const idleID = "idle"

// Goals beside the table of workloads.
const (
	idleGoalKiB   = 8.0  // PSS of one idle clear-text connection, at most
	memoryGoalMiB = 30.0 // PSS of the process under W1, at most
	fixedShare    = 0.7  // of nginx's saturated rate, at which p99 is compared
)

// pickWorkloads resolves a comma-separated list of ids; an empty list is the whole plan. The
// second result tells whether idle connections are to be measured.
func pickWorkloads(list string) ([]workload, bool, error) {
	if list == "" {
		return workloads, true, nil
	}
	var picked []workload
	idle := false
	for id := range strings.SplitSeq(list, ",") {
		id = strings.TrimSpace(id)
		if strings.EqualFold(id, idleID) {
			idle = true
			continue
		}
		i := slices.IndexFunc(workloads, func(w workload) bool { return strings.EqualFold(w.ID, id) })
		if i < 0 {
			return nil, false, fmt.Errorf("no workload %q (there are %s)", id, strings.Join(workloadIDs(), ", "))
		}
		picked = append(picked, workloads[i])
	}
	return picked, idle, nil
}

func workloadIDs() []string {
	ids := make([]string, 0, len(workloads)+1)
	for _, w := range workloads {
		ids = append(ids, w.ID)
	}
	return append(ids, idleID)
}

// fixedRate is the workload as an open loop at the given rate.
func (w workload) fixedRate(rate float64) workload {
	w.Tool, w.Rate = toolRate, rate
	return w
}
