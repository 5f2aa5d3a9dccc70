package main

import (
	"fmt"
	"os/exec"
	"strconv"
)

// command is the load tool's run of a workload against a proxy. It holds back is whether the
// tool keeps its connections until it is let go, and so can be read while they are in place.
func (k toolkit) command(w workload, s site, seconds float64) (*exec.Cmd, error) {
	switch w.Tool {
	case toolWrk:
		if k.wrk == "" {
			return nil, fmt.Errorf("wrk is not installed")
		}
		return exec.Command(k.wrk, w.wrkArgs(s.TLS, seconds, k.wrkScript)...), nil
	case toolH2:
		if k.h2load == "" {
			return nil, fmt.Errorf("h2load is not installed")
		}
		return exec.Command(k.h2load, w.h2Args(s.TLS, seconds, k.call)...), nil
	case toolFull, toolResumed:
		return exec.Command(k.handshake, w.loadArgs(s.TLS, seconds)...), nil
	case toolWS:
		return exec.Command(k.echo, w.loadArgs(s.Plain, seconds)...), nil
	case toolTCP:
		return exec.Command(k.echo, w.loadArgs(s.TCP, seconds)...), nil
	case toolUDP:
		return exec.Command(k.echo, w.loadArgs(s.UDP, seconds)...), nil
	default:
		return exec.Command(k.load, w.loadArgs(s.Plain, seconds)...), nil
	}
}

// stays tells whether the tool says when its window begins, and keeps its connections after
// it until it is let go. Others are known only as a whole.
func (t tool) stays() bool { return t != toolWrk && t != toolH2 }

// loadArgs are the arguments of our own clients for a proxy on the given port.
func (w workload) loadArgs(port int, seconds float64) []string {
	args := []string{
		string(w.Tool), "-port", strconv.Itoa(port), "-conns", strconv.Itoa(w.Conns),
		"-secs", decimal(seconds), "-warm", decimal(w.Warm),
	}
	if w.Path != "" {
		args = append(args, "-path", w.Path)
	}
	if w.Post > 0 {
		args = append(args, "-post", strconv.Itoa(w.Post))
	}
	if w.Body > 0 {
		args = append(args, "-expect", strconv.Itoa(w.Body))
	}
	if w.Tool == toolRate {
		args = append(args, "-rate", decimal(w.Rate))
	}
	return args
}

// wrkArgs are the arguments of wrk, whose script prints the line that our client prints.
func (w workload) wrkArgs(port int, seconds float64, script string) []string {
	return []string{
		"-t1", "-c" + strconv.Itoa(w.Conns), "-d" + wholeSeconds(seconds) + "s",
		"-s", script, "-H", "Host: bench.example", fmt.Sprintf("https://127.0.0.1:%d%s", port, w.Path),
	}
}

// h2Args are the arguments of h2load; call is the file that holds a message for unary calls.
func (w workload) h2Args(port int, seconds float64, call string) []string {
	args := []string{"-t1", "-c" + strconv.Itoa(w.Conns), "-m" + strconv.Itoa(w.Streams), "-D" + wholeSeconds(seconds), "--npn-list=h2"}
	if w.GRPC {
		args = append(args, "-d", call, "-H", "content-type: application/grpc", "-H", "te: trailers")
	}
	return append(args, "-H", ":authority: bench.example", fmt.Sprintf("https://127.0.0.1:%d%s", port, w.Path))
}

func wholeSeconds(s float64) string { return strconv.Itoa(max(1, int(s+0.5))) }

func decimal(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
