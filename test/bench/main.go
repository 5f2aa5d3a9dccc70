// Command bench compares sluice with other proxies on this machine: CPU for each request,
// throughput, latency and memory, in interleaved trials of one run, and holds our figures
// against the goals. docs/bench.md says what is measured and how to read it.
//
// It owns every process that it starts and ends them by their ids, also when it is
// interrupted. It knows the product only as a binary and a configuration file.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// bench is one run.
type bench struct {
	cache      string
	sluice     string
	basePort   int
	trials     int
	seconds    float64
	retries    int     // repeats of a disturbed trial
	maxOthers  float64 // share of the machine, 0 to 1
	fixed      bool    // run the phase at a fixed rate
	processors int
	kit        toolkit
	cert       certificate
	upstream   *loader
	grpc       *loader // upstream of unary calls
	log        func(line string)
}

func (b *bench) progress(format string, args ...any) {
	b.log(time.Now().Format("15:04:05 ") + fmt.Sprintf(format, args...))
}

// request is what the command line asks for.
type request struct {
	bench
	plan   []workload
	idle   int // connections; 0 is none
	names  []string
	strict bool
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == grpcRole {
		if err := serveGRPC(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	runtime.LockOSThread() // children are tied to the life of the thread that started them
	os.Exit(run())
}

func run() int {
	req, err := parseArgs(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return 2
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	res, err := req.perform(ctx)
	if res != nil && len(res.Rows)+len(res.Idle) > 0 {
		if werr := req.publish(res); werr != nil {
			err = errors.Join(err, werr)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	if req.strict && res.missed() {
		fmt.Fprintln(os.Stderr, "bench: a goal that a release must hold was missed")
		return 3
	}
	return 0
}

// parseArgs reads the command line.
func parseArgs(args []string) (*request, error) {
	r := &request{}
	var list, proxies string
	var smoke bool
	var others float64
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.IntVar(&r.trials, "trials", 7, "trials of each proxy under each workload")
	f.Float64Var(&r.seconds, "seconds", 5, "length of a trial")
	f.StringVar(&list, "workloads", "", "comma-separated ids (default all): "+strings.Join(workloadIDs(), ","))
	f.StringVar(&proxies, "proxies", "", "comma-separated names (default all that are found): "+strings.Join(peerNames(), ","))
	f.StringVar(&r.sluice, "sluice", "bin/sluice", "our binary")
	f.StringVar(&r.cache, "cache", ".cache/bench", "directory for tools, peers, logs and results")
	f.IntVar(&r.basePort, "base-port", 61100, "first of the loopback ports used")
	f.IntVar(&r.idle, "idle", 10000, "idle connections to open")
	f.IntVar(&r.retries, "retries", 3, "repeats of a trial that others disturbed")
	f.Float64Var(&others, "max-others", 10, "percent of the machine that others may use in a trial")
	f.BoolVar(&r.fixed, "fixed", true, "also compare latency at 70 % of nginx's rate")
	f.BoolVar(&r.strict, "strict", false, "exit with 3 when a goal that a release must hold is missed")
	f.BoolVar(&smoke, "smoke", false, "one trial of a second, three workloads, no repeats: does everything work?")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if smoke {
		r.trials, r.seconds, r.retries = 1, 1, 0
		r.idle = min(r.idle, 500)
		if list == "" {
			list = "W1,W2,W5,idle"
		}
	}
	if f.NArg() > 0 || r.trials < 1 || r.seconds <= 0 || r.retries < 0 || r.basePort < 1024 || r.basePort > 65000 {
		return nil, errors.New("arguments out of range (see -help)")
	}
	plan, idle, err := pickWorkloads(list)
	if err != nil {
		return nil, err
	}
	r.plan = plan
	if !idle {
		r.idle = 0
	}
	if proxies != "" {
		r.names = strings.Split(proxies, ",")
	}
	r.maxOthers = others / 100
	r.log = func(line string) { fmt.Fprintln(os.Stderr, line) }
	return r, r.absolute()
}

// absolute makes the paths independent of a process's directory.
func (r *request) absolute() error {
	for _, p := range []*string{&r.cache, &r.sluice} {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return fmt.Errorf("resolving %s: %w", *p, err)
		}
		*p = abs
	}
	return nil
}

// publish prints the tables and keeps them.
func (r *request) publish(res *result) error {
	text := res.markdown()
	fmt.Print(text)
	js, err := json.MarshalIndent(res, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding the result: %w", err)
	}
	if err := os.WriteFile(filepath.Join(r.cache, "result.md"), []byte(text), 0o644); err != nil {
		return fmt.Errorf("keeping the result: %w", err)
	}
	if err := os.WriteFile(filepath.Join(r.cache, "result.json"), append(js, '\n'), 0o644); err != nil {
		return fmt.Errorf("keeping the result: %w", err)
	}
	r.progress("kept in %s", filepath.Join(r.cache, "result.md"))
	return nil
}

// missed tells whether a goal that a release must hold was missed.
func (r *result) missed() bool {
	for _, v := range r.Verdicts {
		if v.Goal != goalReach && !v.Pass && !v.Noisy {
			return true
		}
	}
	return false
}

func peerNames() []string {
	names := make([]string, 0, len(peers))
	for _, p := range peers {
		names = append(names, p.name)
	}
	return names
}
