package main

import (
	"errors"
	"flag"
	"slices"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestArguments(t *testing.T) {
	for _, c := range []struct {
		name  string
		args  []string
		bad   bool
		check func(r *request) bool
	}{
		{"defaults", nil, false, func(r *request) bool {
			return r.trials == 7 && r.seconds == 5 && r.retries == 3 && r.maxOthers == 0.1 && r.idle == 10000 && len(r.plan) == len(workloads) && r.fixed
		}},
		{"some workloads leave idle connections out", []string{"-workloads", "W1,w4"}, false, func(r *request) bool {
			return len(r.plan) == 2 && r.plan[1].ID == "W4" && r.idle == 0
		}},
		{"idle only", []string{"-workloads", "idle", "-idle", "7"}, false, func(r *request) bool { return len(r.plan) == 0 && r.idle == 7 }},
		{"proxies", []string{"-proxies", "nginx,sluice"}, false, func(r *request) bool { return slices.Equal(r.names, []string{"nginx", "sluice"}) }},
		{"smoke", []string{"-smoke"}, false, func(r *request) bool {
			return r.trials == 1 && r.seconds == 1 && r.retries == 0 && len(r.plan) == 3 && r.idle == 500
		}},
		{"smoke of one workload", []string{"-smoke", "-workloads", "W7"}, false, func(r *request) bool { return len(r.plan) == 1 && r.idle == 0 }},
		{"unknown workload", []string{"-workloads", "W1,W99"}, true, nil},
		{"no trial", []string{"-trials", "0"}, true, nil},
		{"no time", []string{"-seconds", "0"}, true, nil},
		{"privileged port", []string{"-base-port", "80"}, true, nil},
		{"stray argument", []string{"W1"}, true, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := parseArgs(c.args)
			if c.bad {
				if err == nil || errors.Is(err, flag.ErrHelp) {
					t.Fatalf("err = %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !c.check(r) {
				t.Errorf("parsed as %+v", r)
			}
		})
	}
}

func TestMissedGoals(t *testing.T) {
	for _, c := range []struct {
		name string
		v    verdict
		want bool
	}{
		{"held", verdict{Goal: goalMust, Pass: true}, false},
		{"missed", verdict{Goal: goalMust}, true},
		{"missed on a noisy row", verdict{Goal: goalMust, Noisy: true}, false},
		{"only the reach", verdict{Goal: goalReach}, false},
		{"memory", verdict{Goal: goalMemory}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := (&result{Verdicts: []verdict{c.v}}).missed(); got != c.want {
				t.Errorf("missed = %v", got)
			}
		})
	}
}
