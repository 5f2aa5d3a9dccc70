package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of times in /proc (USER_HZ is 100 on every Linux port that Go has).
const tick = 10 * time.Millisecond

// procStat is what the bench needs of /proc/PID/stat.
type procStat struct {
	PID, Parent int
	CPU         time.Duration // user and system time of the process itself
	Reaped      time.Duration // of its children that ended and were waited for
	Start       uint64        // ticks since boot: with the PID it names a process for good
}

// parseStat reads one line of /proc/PID/stat (proc_pid_stat(5)). The command name may hold
// blanks and brackets, so fields are counted from its last closing bracket.
func parseStat(line string) (procStat, error) {
	open, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 1 || end < open {
		return procStat{}, fmt.Errorf("no command name in %q", line)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line[:open]))
	if err != nil {
		return procStat{}, fmt.Errorf("pid: %w", err)
	}
	f := strings.Fields(line[end+1:]) // f[0] is field 3, the state
	if len(f) < 20 {
		return procStat{}, fmt.Errorf("%d fields after the command name, want at least 20", len(f))
	}
	var n [6]uint64
	for i, field := range []int{4, 14, 15, 16, 17, 22} {
		if n[i], err = strconv.ParseUint(f[field-3], 10, 64); err != nil {
			return procStat{}, fmt.Errorf("field %d: %w", field, err)
		}
	}
	return procStat{
		PID: pid, Parent: int(n[0]), CPU: time.Duration(n[1]+n[2]) * tick,
		Reaped: time.Duration(n[3]+n[4]) * tick, Start: n[5],
	}, nil
}

// parseIdle reads the first line of /proc/stat: the time that the machine's processors were
// idle, waiting for disks included, since boot.
func parseIdle(text string) (time.Duration, error) {
	line, _, _ := strings.Cut(text, "\n")
	f := strings.Fields(line)
	if len(f) < 6 || f[0] != "cpu" {
		return 0, fmt.Errorf("not the sum line of /proc/stat: %q", line)
	}
	var sum uint64
	for _, s := range f[4:6] {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("idle time: %w", err)
		}
		sum += n
	}
	return time.Duration(sum) * tick, nil
}

// parsePSS reads the proportional set size, in bytes, from a /proc/PID/smaps_rollup.
func parsePSS(text string) (int64, error) {
	for line := range strings.SplitSeq(text, "\n") {
		rest, ok := strings.CutPrefix(line, "Pss:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("pss: %w", err)
		}
		return kib << 10, nil
	}
	return 0, errors.New("no Pss line")
}

// family is the process and all its descendants among the given ones.
func family(all []procStat, root int) []procStat {
	var out []procStat
	seen := map[int]bool{root: true}
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if seen[p.Parent] && !seen[p.PID] {
				seen[p.PID], grown = true, true
			}
		}
	}
	for _, p := range all {
		if seen[p.PID] {
			out = append(out, p)
		}
	}
	return out
}

// readAll reads every process that there is. One that ends meanwhile is left out.
func readAll() ([]procStat, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	var out []procStat
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		p, err := parseStat(string(bytes.TrimSpace(b)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		out = append(out, p)
	}
	return out, nil
}

// sumCPU is the time used by the processes and by the children that they have waited for. It
// may only be compared with a later sum over the same family: a child's time moves from its
// own line to its parent's as it ends.
func sumCPU(procs []procStat) time.Duration {
	var sum time.Duration
	for _, p := range procs {
		sum += p.CPU + p.Reaped
	}
	return sum
}

// sumPSS is the proportional set size of the processes, in bytes.
func sumPSS(procs []procStat) (int64, error) {
	var sum int64
	for _, p := range procs {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p.PID))
		if err != nil {
			return 0, fmt.Errorf("memory of process %d: %w", p.PID, err)
		}
		n, err := parsePSS(string(b))
		if err != nil {
			return 0, fmt.Errorf("memory of process %d: %w", p.PID, err)
		}
		sum += n
	}
	return sum, nil
}

// reading is the state of the machine and of the processes of a trial at one moment.
type reading struct {
	at    time.Time
	idle  time.Duration // of all processors
	proxy time.Duration // CPU of the proxy's family
	own   time.Duration // CPU of the bench itself: harness, upstream, load tool
}

// read takes a reading. ours are processes of the bench, without their children.
func read(proxyRoot int, ours []int) (reading, error) {
	procs, err := readAll()
	if err != nil {
		return reading{}, err
	}
	r := reading{at: time.Now(), proxy: sumCPU(family(procs, proxyRoot))}
	for _, p := range procs {
		for _, pid := range ours {
			if p.PID == pid {
				r.own += p.CPU
			}
		}
	}
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return reading{}, fmt.Errorf("reading the machine's times: %w", err)
	}
	r.idle, err = parseIdle(string(b))
	return r, err
}

// usage is what was used between two readings.
type usage struct {
	wall   time.Duration
	proxy  time.Duration
	bench  time.Duration // of the client, the upstream and the harness
	others float64       // share of the machine, 0 to 1, that neither proxy nor bench used
}

// since is the use from an earlier reading to this one. extra is CPU of the bench that no
// reading holds (a load tool that has ended).
func (r reading) since(from reading, processors int, extra time.Duration) usage {
	wall := r.at.Sub(from.at)
	whole := wall * time.Duration(processors)
	if whole <= 0 {
		return usage{}
	}
	u := usage{wall: wall, proxy: r.proxy - from.proxy, bench: r.own - from.own + extra}
	others := whole - (r.idle - from.idle) - u.proxy - u.bench
	u.others = max(0, float64(others)/float64(whole))
	return u
}
