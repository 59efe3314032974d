//go:build linux

package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// event is one line of `go test -json`, see `go doc test2json` and `go help buildjson`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of what is built
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// What a test came to.
const (
	passed   = "pass"
	failed   = "fail"
	skipped  = "skip"
	measured = "bench"
)

// result is what one test, fuzz target or benchmark came to. Those without a
// name are packages: one that does not build, or fails outside of its tests.
type result struct {
	Package string  `json:"package"`
	Name    string  `json:"name,omitempty"`
	Result  string  `json:"result"`
	Seconds float64 `json:"seconds"`
	Reason  string  `json:"reason,omitempty"` // of a skipped test
}

// String returns the name that tells a result from all others of a step.
func (r result) String() string { return strings.TrimSpace(r.Package + " " + r.Name) }

// slow is how many seconds a test takes that is named when it passes.
const slow = 1

// measurement is what `go test` prints of a benchmark, after its name: how often
// it ran, and a first number with its unit.
var measurement = regexp.MustCompile(`\s\d+\t\s*[0-9.e+]+ \S`)

// reader takes the events of one `go test`, in order.
type reader struct {
	// verbose has it print all there is, as `go test -v` does.
	verbose bool
	results []result
	// open is the output of tests that have not ended.
	open map[test]*strings.Builder
}

type test struct{ pkg, name string }

// read takes one event and returns what to print of it.
func (r *reader) read(e event) string {
	switch {
	case e.Action == "build-output":
		return e.Output
	case e.Action == "build-fail":
		r.add(event{Package: e.ImportPath}, failed, "")
		return ""
	case e.Action == "output":
		return r.output(e)
	case e.Test == "" && e.Action == failed:
		return r.endPackage(e)
	case e.Test == "":
		return "" // A package has passed, or has no tests.
	case e.Action == passed, e.Action == failed, e.Action == skipped:
		return r.end(e)
	}
	return ""
}

// output keeps a test's output until its end, and prints all other.
func (r *reader) output(e event) string {
	note := strings.HasPrefix(e.Output, "=== ") || isBenchmark(e) && strings.TrimSpace(e.Output) == e.Test
	if e.Test == "" {
		if !r.verbose && (note || e.Output == "PASS\n") {
			return ""
		}
		return e.Output
	}
	if isBenchmark(e) && measurement.MatchString(e.Output) {
		r.add(e, measured, "")
	}
	key := test{e.Package, e.Test}
	if r.open[key] == nil {
		if r.open == nil {
			r.open = map[test]*strings.Builder{}
		}
		r.open[key] = &strings.Builder{}
	}
	if !note {
		r.open[key].WriteString(e.Output)
	}
	if r.verbose || isBenchmark(e) && !note {
		return e.Output
	}
	return ""
}

// isBenchmark tells whether an event is of a benchmark. What these print is what
// they are for, and they have no end.
func isBenchmark(e event) bool { return strings.HasPrefix(e.Test, "Benchmark") }

// end notes what a test came to.
func (r *reader) end(e event) string {
	text := r.close(test{e.Package, e.Test})
	reason := ""
	if e.Action == skipped {
		reason = why(text)
	}
	r.add(e, e.Action, reason)
	switch {
	case r.verbose, isBenchmark(e):
		return "" // It is printed.
	case e.Action == failed:
		return text
	case e.Action == skipped:
		return fmt.Sprintf("--- SKIP: %s: %s\n", e.Test, reason)
	case e.Elapsed >= slow:
		return fmt.Sprintf("--- PASS: %s (%.0f s)\n", e.Test, e.Elapsed)
	}
	return ""
}

// endPackage notes a package that failed. Tests of it that have not ended, as
// when their process dies, have failed with it.
func (r *reader) endPackage(e event) string {
	var tests []string
	for key := range r.open {
		if key.pkg == e.Package && !isBenchmark(event{Test: key.name}) {
			tests = append(tests, key.name)
		}
	}
	slices.Sort(tests)
	var texts strings.Builder
	for _, name := range tests {
		texts.WriteString(r.close(test{e.Package, name}))
		r.add(event{Package: e.Package, Test: name}, failed, "")
	}
	if !slices.ContainsFunc(r.results, func(other result) bool { return other.Package == e.Package && other.Result == failed }) {
		r.add(e, failed, "")
	}
	if r.verbose {
		return ""
	}
	return texts.String()
}

func (r *reader) close(key test) string {
	text := r.open[key]
	delete(r.open, key)
	if text == nil {
		return ""
	}
	return text.String()
}

func (r *reader) add(e event, what, reason string) {
	r.results = append(r.results, result{Package: e.Package, Name: e.Test, Result: what, Seconds: e.Elapsed, Reason: reason})
}

// why returns the reason in the output of a test that was skipped, in one line.
func why(output string) string {
	var lines []string
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--- SKIP") {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return "it does not say why"
	}
	return strings.Join(lines, " ")
}

// last keeps of each test the last result, in order: what failed and was run
// again came to what it did then.
func last(results []result) []result {
	at := map[test]int{}
	var kept []result
	for _, r := range results {
		key := test{r.Package, r.Name}
		if i, ok := at[key]; ok {
			kept[i] = r
			continue
		}
		at[key] = len(kept)
		kept = append(kept, r)
	}
	return kept
}
