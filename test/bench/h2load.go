package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// h2Result reads what h2load prints at its end. It tells no percentiles, only the mean.
func (l *loader) h2Result(ctx context.Context, limit time.Duration) (loadResult, error) {
	var lines []string
	for _, prefix := range []string{"finished in ", "requests: "} {
		line, err := l.next(ctx, prefix, limit)
		if err != nil {
			return loadResult{}, err
		}
		lines = append(lines, line)
	}
	return parseH2load(lines[0], lines[1])
}

// parseH2load reads
//
//	finished in 5.00s, 51043.20 req/s, 3.41MB/s
//	requests: 255216 total, 255280 started, 255216 done, 255216 succeeded, 0 failed, 0 errored, 0 timeout
func parseH2load(finished, requests string) (loadResult, error) {
	res := loadResult{P50: -1, P99: -1, First50: -1, First99: -1}
	secs, rest, _ := strings.Cut(strings.TrimPrefix(finished, "finished in "), ", ")
	took, err := time.ParseDuration(secs)
	if err != nil || took <= 0 {
		return res, fmt.Errorf("h2load's time: %q", finished)
	}
	res.Seconds = took.Seconds()
	rate, _, ok := strings.Cut(rest, " req/s")
	if res.PerSecond, err = strconv.ParseFloat(rate, 64); err != nil || !ok {
		return res, fmt.Errorf("h2load's rate: %q", finished)
	}
	for part := range strings.SplitSeq(strings.TrimPrefix(requests, "requests: "), ", ") {
		count, name, _ := strings.Cut(part, " ")
		n, err := strconv.ParseInt(count, 10, 64)
		if err != nil {
			return res, fmt.Errorf("h2load's counts: %q", requests)
		}
		switch name {
		case "succeeded":
			res.N = n
		case "failed", "timeout": // errored ones are among the failed
			res.Errors += n
		}
	}
	return res, nil
}
