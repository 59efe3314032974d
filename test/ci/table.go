//go:build linux

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"text/tabwriter"
	"time"
)

// outcome is what a step came to.
type outcome struct {
	Step string `json:"step"`
	// Problem is what is wrong with it, in a few words. Empty means it is well.
	Problem string   `json:"problem,omitempty"`
	Seconds float64  `json:"seconds"`
	Tests   []result `json:"tests,omitempty"`
	// Disturbed are the tests that failed while other steps ran beside this one,
	// which was then run again, alone.
	Disturbed []string `json:"disturbed,omitempty"`
}

// judge says what a step came to, by its tests and the error of its command.
func judge(s step, results []result, err error) outcome {
	o := outcome{Step: s.name, Tests: results}
	switch {
	case err != nil:
		o.Problem = "failed: " + err.Error()
	case o.count(failed) > 0:
		o.Problem = "failed: its tests did, and its command did not say so"
	case o.count(skipped) > 0:
		o.Problem = "skipped tests"
	case s.tests && len(results) == 0:
		o.Problem = "ran no test"
	}
	return o
}

func (o outcome) verdict() string {
	verdict := cmp.Or(o.Problem, "passed")
	if len(o.Disturbed) > 0 {
		verdict += ", alone, after a failure beside others"
	}
	return verdict
}

// failures returns the names of the tests that failed.
func (o outcome) failures() []string {
	var names []string
	for _, t := range o.Tests {
		if t.Result == failed {
			names = append(names, t.String())
		}
	}
	return names
}

func (o outcome) count(what string) int {
	n := 0
	for _, t := range o.Tests {
		if t.Result == what {
			n++
		}
	}
	return n
}

// table returns the run as a person reads it, and whether all went well. took is
// less than its steps' times together, where these ran side by side.
func table(outcomes []outcome, took time.Duration) (text string, good bool) {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "STEP\tTIME\tPASSED\tFAILED\tSKIPPED\tMEASURED\t")
	bad := 0
	for _, o := range outcomes {
		if o.Problem != "" {
			bad++
		}
		fmt.Fprintf(w, "%s\t%s", o.Step, clock(o.Seconds))
		for _, what := range []string{passed, failed, skipped, measured} {
			number := "-"
			if n := o.count(what); n > 0 {
				number = fmt.Sprint(n)
			}
			fmt.Fprintf(w, "\t%s", number)
		}
		fmt.Fprintf(w, "\t%s\n", o.verdict())
	}
	w.Flush()
	for _, o := range outcomes {
		for _, name := range o.Disturbed {
			fmt.Fprintf(&b, "AT FIRST %s: %s failed beside others\n", o.Step, name)
		}
		for _, t := range o.Tests {
			switch t.Result {
			case failed:
				fmt.Fprintf(&b, "FAILED   %s: %s\n", o.Step, t)
			case skipped:
				fmt.Fprintf(&b, "SKIPPED  %s: %s: %s\n", o.Step, t, t.Reason)
			}
		}
	}
	fmt.Fprintf(&b, "%d steps in %s, %d of them not well\n", len(outcomes), clock(took.Seconds()), bad)
	return b.String(), bad == 0
}

// clock prints seconds as minutes and seconds.
func clock(seconds float64) string {
	s := int(seconds + 0.5)
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

func writeReport(path string, outcomes []outcome) error {
	data, err := json.MarshalIndent(outcomes, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
