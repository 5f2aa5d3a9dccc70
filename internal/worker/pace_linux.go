package worker

import "time"

// pace bounds how often something happens: rate times a second, and burst times before that counts. Its zero value bounds nothing.
// It is for one goroutine.
type pace struct {
	rate, burst float64
	spent       float64
	at          time.Time
}

// next counts one that is to happen now, and returns how long it has to wait first.
func (p *pace) next(now time.Time) time.Duration {
	if p.rate == 0 {
		return 0
	}
	p.spent = max(0, p.spent-now.Sub(p.at).Seconds()*p.rate) + 1
	p.at = now
	return time.Duration(max(0, p.spent-p.burst) / p.rate * float64(time.Second))
}
