//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
)

// step is one command of the run.
type step struct {
	name    string
	command []string
	// tests says that it runs tests or benchmarks, which must not be none.
	tests bool
	// aside says that it needs no root and may take its time: it runs as an
	// ordinary user, and steps beside it have the processors first.
	aside bool
}

// lane is steps that run one after the other.
type lane []step

// stage is lanes that run side by side. A stage begins when the one before it
// has ended.
type stage []lane

// plan is what CI runs. The suites with a kubelet wait most of the time, and
// there can be only one kubelet at once: they are one lane, and what computes is
// the other. Benchmarks are alone.
var plan = []stage{
	{{
		{name: "tidy", command: []string{"test/tidy.sh"}, aside: true},
		{name: "build", command: []string{"make", "build"}, aside: true},
		{name: "parts", command: []string{"test/parts/build.sh", "all"}},
	}},
	{
		{
			{name: "e2e", command: []string{"make", "e2e"}, tests: true},
			{name: "cluster", command: []string{"make", "e2e-cluster"}, tests: true},
		},
		{
			{name: "lint", command: []string{"make", "lint"}, aside: true},
			{name: "test", command: []string{"make", "test"}, tests: true, aside: true},
			{name: "race", command: []string{"make", "test-race"}, tests: true, aside: true},
			{name: "demo", command: []string{"make", "demo"}, aside: true},
			{name: "chart", command: []string{"make", "chart"}, tests: true, aside: true},
			{name: "release", command: []string{"make", "release-test"}, tests: true, aside: true},
			{name: "fuzz", command: []string{"make", "fuzz", "FUZZTIME=5s"}, tests: true, aside: true},
			{name: "windows", command: []string{"make", "e2e-windows"}, tests: true},
		},
	},
	{{
		{name: "bench", command: []string{"make", "bench", "BENCHTIME=200x"}, tests: true},
	}},
}

// choose returns the steps of the plan with those names, or all without a name.
func choose(plan []stage, names []string) ([]stage, error) {
	var known []string
	var chosen []stage
	for _, stage := range plan {
		var lanes []lane
		for _, steps := range stage {
			var kept lane
			for _, s := range steps {
				known = append(known, s.name)
				if len(names) == 0 || slices.Contains(names, s.name) {
					kept = append(kept, s)
				}
			}
			if len(kept) > 0 {
				lanes = append(lanes, kept)
			}
		}
		if len(lanes) > 0 {
			chosen = append(chosen, lanes)
		}
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("there is no step %q: the steps are %s", name, strings.Join(known, ", "))
		}
	}
	return chosen, nil
}
