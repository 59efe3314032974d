//go:build linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// module is a module whose tests come to all that tests can come to.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range files {
		path := filepath.Join(folder, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

const testFile = `package some

import ("os"; "testing")

func TestGood(t *testing.T) { t.Log("not of interest") }
func TestParts(t *testing.T) {
	t.Run("good", func(t *testing.T) {})
	t.Run("away", func(t *testing.T) { t.Skip("no such thing\nhere") })
}
func TestBad(t *testing.T) {
	if os.Getenv("BAD") == "" { return }
	if os.Getenv("BAD") == "exit" { os.Exit(3) }
	t.Error("of interest")
}
func BenchmarkGood(b *testing.B) { b.Run("part=1", func(b *testing.B) { for b.Loop() {} }) }
func BenchmarkAway(b *testing.B) { b.Skip("too slow") }
`

func TestGotest(t *testing.T) {
	t.Parallel()
	folder := module(t, map[string]string{
		"go.mod":                "module m\ngo 1.26\n",
		"some/some_test.go":     testFile,
		"none/none.go":          "package none\n",
		"broken/broken_test.go": "package broken\nvar x int = true\n",
	})
	for _, tt := range []struct {
		name   string
		args   []string
		env    string
		status int
		want   []result
		says   []string
		silent []string
	}{
		{
			name: "what passes says little", args: []string{"./some", "./none"},
			want: []result{
				{"m/some", "TestGood", passed, 0, ""}, {"m/some", "TestParts", passed, 0, ""}, {"m/some", "TestParts/good", passed, 0, ""},
				{"m/some", "TestParts/away", skipped, 0, "some_test.go:8: no such thing here"}, {"m/some", "TestBad", passed, 0, ""},
			},
			says: []string{"ok  \tm/some", "--- SKIP: TestParts/away: some_test.go:8: no such thing here\n"}, silent: []string{"not of interest", "=== RUN"},
		},
		{
			name: "verbose", args: []string{"-v", "-run", "Good", "./some"},
			want: []result{{"m/some", "TestGood", passed, 0, ""}},
			says: []string{"=== RUN   TestGood", "not of interest", "--- PASS: TestGood"},
		},
		{
			name: "a failure", args: []string{"-run", "Good|Bad", "./some"}, env: "BAD=yes", status: 1,
			want: []result{{"m/some", "TestGood", passed, 0, ""}, {"m/some", "TestBad", failed, 0, ""}},
			says: []string{"--- FAIL: TestBad", "of interest\n", "FAIL\tm/some"}, silent: []string{"not of interest"},
		},
		{
			name: "a process that ends", args: []string{"-run", "Good|Bad", "./some"}, env: "BAD=exit", status: 1,
			want: []result{{"m/some", "TestGood", passed, 0, ""}, {"m/some", "TestBad", failed, 0, ""}},
			says: []string{"FAIL\tm/some"},
		},
		{
			name: "what does not build", args: []string{"./broken"}, status: 1,
			want: []result{{"m/broken [m/broken.test]", "", failed, 0, ""}, {"m/broken", "", failed, 0, ""}},
			says: []string{"broken_test.go:2:13: cannot use true"},
		},
		{
			name: "benchmarks", args: []string{"-run", "^$", "-bench", ".", "-benchtime", "3x", "./some"},
			want: []result{{"m/some", "BenchmarkGood/part=1", measured, 0, ""}, {"m/some", "BenchmarkAway", skipped, 0, "some_test.go:16: too slow"}},
			says: []string{"BenchmarkGood/part=1", " ns/op\n", "--- SKIP: BenchmarkAway\n"},
		},
		{name: "nothing", args: []string{"-run", "^$", "./some"}, says: []string{"ok  \tm/some", "[no tests to run]"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			results := filepath.Join(t.TempDir(), "results")
			var out bytes.Buffer
			cmd := exec.Command("go", append([]string{"test", "-json", "-count=1"}, tt.args...)...)
			cmd.Dir, cmd.Env = folder, append(os.Environ(), "GOFLAGS=-mod=mod", tt.env)
			err := runGotest(cmd, slices.Contains(tt.args, "-v"), &out, results)
			status := 0
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
				status = exit.ExitCode()
			} else if err != nil {
				t.Fatal(err)
			}
			if status != tt.status {
				t.Errorf("status %d, want %d", status, tt.status)
			}
			got, err := readResults(results)
			if err != nil {
				t.Fatal(err)
			}
			byName := cmpopts.SortSlices(func(a, b result) bool {
				return cmp.Or(strings.Compare(a.Package, b.Package), strings.Compare(a.Name, b.Name)) < 0
			})
			if diff := gocmp.Diff(tt.want, got, byName, cmpopts.IgnoreFields(result{}, "Seconds"), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("results (-want +got):\n%s", diff)
			}
			for _, want := range tt.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("the output has no %q:\n%s", want, &out)
				}
			}
			for _, silent := range tt.silent {
				if strings.Contains(out.String(), silent) {
					t.Errorf("the output has %q:\n%s", silent, &out)
				}
			}
		})
	}
}

func TestLast(t *testing.T) {
	t.Parallel()
	got := last([]result{
		{Package: "p", Name: "FuzzA", Result: failed}, {Package: "p", Name: "FuzzB", Result: passed}, {Package: "p", Name: "FuzzA", Result: passed},
	})
	want := []result{{Package: "p", Name: "FuzzA", Result: passed}, {Package: "p", Name: "FuzzB", Result: passed}}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	var (
		suite    = step{name: "suite", tests: true}
		good     = result{Name: "TestA", Result: passed}
		bad      = result{Name: "TestB", Result: failed}
		away     = result{Name: "TestC", Result: skipped}
		exitFail = errors.New("exit status 1")
	)
	for _, tt := range []struct {
		name    string
		step    step
		results []result
		err     error
		want    string
	}{
		{"all passed", suite, []result{good}, nil, "passed"},
		{"a test failed", suite, []result{good, bad}, exitFail, "failed: exit status 1"},
		{"a failure that is hidden", suite, []result{bad}, nil, "failed: its tests did, and its command did not say so"},
		{"a skip is none", suite, []result{good, away}, nil, "skipped tests"},
		{"a suite of nothing", suite, nil, nil, "ran no test"},
		{"no suite", step{name: "lint"}, nil, nil, "passed"},
		{"no suite that fails", step{name: "lint"}, nil, exitFail, "failed: exit status 1"},
	} {
		if got := judge(tt.step, tt.results, tt.err).verdict(); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	outcomes := []outcome{
		{Step: "build", Seconds: 21.6},
		{Step: "e2e", Seconds: 600, Tests: []result{{"m/e2e", "TestA", passed, 1, ""}, {"m/e2e", "TestB", skipped, 0, "no root"}}, Problem: "skipped tests"},
		{Step: "test", Tests: []result{{"m/p", "TestC", failed, 1, ""}}, Problem: "failed: exit status 2"},
		{Step: "bench", Problem: "did not run"},
	}
	want := `STEP   TIME   PASSED  FAILED  SKIPPED  MEASURED  
build  0:22   -       -       -        -         passed
e2e    10:00  1       -       1        -         skipped tests
test   0:00   -       1       -        -         failed: exit status 2
bench  0:00   -       -       -        -         did not run
SKIPPED  e2e: m/e2e TestB: no root
FAILED   test: m/p TestC
4 steps in 10:30, 3 of them not well
`
	got, good := table(outcomes, 630*time.Second)
	if diff := gocmp.Diff(want, got); diff != "" || good {
		t.Errorf("well: %t, %s", good, diff)
	}
	if got, good := table(outcomes[:1], time.Second); !good {
		t.Errorf("not well:\n%s", got)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	shell := func(name, script string) step {
		return step{name: name, command: []string{"sh", "-c", script}, aside: true}
	}
	// suite comes to nothing good while the file is not there, which it makes.
	suite := func(name, file string) step {
		return step{name: name, tests: true, aside: true, command: []string{"sh", "-c", `
			test -e ` + file + ` && result=pass || { result=fail; touch ` + folder + `/` + name + `.ran; }
			echo '{"package":"m/p","name":"TestA","result":"'$result'"}' >>$` + resultsVar + `; test $result = pass`}}
	}
	stages := []stage{
		{{shell("first", "echo one; printf two >&2; touch "+folder+"/first")}},
		{
			{shell("bad", "exit 3"), shell("next", "test -e "+folder+"/first && echo $CI ${GOTEST##* }")},
			{shell("beside", "true"), suite("disturbed", folder+"/disturbed.ran"), suite("broken", folder+"/never")},
		},
		{{
			shell("leaves", "sleep 1000 >/dev/null 2>&1 & echo $! >"+folder+"/left"),
			shell("ordinary", `test $(id -u) != 0 && grep -q "CapEff:.*0000000000000000" /proc/self/status && nice`),
			{name: "none", command: []string{"true"}, tests: true, aside: true},
			{name: "skips", command: []string{"sh", "-c", `echo '{"package":"m/p","name":"TestA","result":"skip"}' >>$` + resultsVar}, tests: true, aside: true},
		}},
	}
	var out bytes.Buffer
	r, err := newRunner(folder, &out)
	if err != nil {
		t.Fatal(err)
	}
	err = r.runAll(t.Context(), stages)
	if err == nil || !strings.Contains(err.Error(), "the run has failed") {
		t.Errorf("error %v", err)
	}
	for name, want := range map[string]string{
		"first": "passed", "leaves": "passed", "bad": "failed: exit status 3", "next": "passed", "beside": "passed",
		"disturbed": "passed, alone, after a failure beside others", "broken": "failed: exit status 1, alone, after a failure beside others", "ordinary": "passed", "none": "ran no test", "skips": "skipped tests",
	} {
		o := r.done[name]
		if name == "ordinary" && os.Geteuid() == 0 && !r.ordinary {
			continue // There are no user namespaces here.
		}
		if got := o.verdict(); got != want {
			t.Errorf("step %s: %q, want %q", name, got, want)
		}
	}
	for _, want := range []string{"first   | one\nfirst   | two\n", "next    | true -count=1\n", "=== bad: failed: exit status 3\n", "AT FIRST disturbed: m/p TestA failed beside others\n", "10 steps in "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output has no %q:\n%s", want, &out)
		}
	}
	left, err := os.ReadFile(filepath.Join(folder, "left"))
	if err != nil {
		t.Fatal(err)
	}
	for runs := true; runs; { // It has been told to end, and nobody waits for it.
		command, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(left)), "cmdline"))
		if runs = err == nil && strings.HasPrefix(string(command), "sleep"); runs {
			time.Sleep(10 * time.Millisecond)
		}
	}
	for _, name := range []string{"disturbed.first.log", "disturbed.log"} {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			t.Error(err)
		}
	}
	if log, err := os.ReadFile(filepath.Join(folder, "first.log")); err != nil || string(log) != "one\ntwo" {
		t.Errorf("log %q, %v", log, err)
	}
	if report, err := os.ReadFile(filepath.Join(folder, "report.json")); err != nil || !bytes.Contains(report, []byte(`"problem": "ran no test"`)) {
		t.Errorf("report %s, %v", report, err)
	}
}

// TestRunEnds ends a run in its first step: it is told, and what follows does not run.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := newRunner(t.TempDir(), onLine(func(line []byte) {
		if bytes.Contains(line, []byte("| here")) {
			cancel()
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	err = r.runAll(ctx, []stage{{{
		{name: "first", command: []string{"sh", "-c", "trap 'echo cleaned; exit 1' TERM; echo here; while :; do sleep 0.1; done"}, aside: true},
		{name: "second", command: []string{"true"}, aside: true},
	}}})
	if err == nil {
		t.Error("a run that was ended is well")
	}
	if log, err := os.ReadFile(filepath.Join(r.folder, "first.log")); err != nil || !strings.HasSuffix(string(log), "cleaned\n") {
		t.Errorf("log %q, %v", log, err)
	}
	if report, err := os.ReadFile(filepath.Join(r.folder, "report.json")); err != nil || !bytes.Contains(report, []byte("did not run")) {
		t.Errorf("report %s, %v", report, err)
	}
}

// TestNobodyReads: a run goes on to its end, by which its steps end.
func TestNobodyReads(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	program := filepath.Join(dir, "ci")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
		t.Fatal(err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	cmd := exec.Command(program, "demo")
	cmd.Dir, cmd.Stdout = dir, writer
	if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%v, want status 1: there is nothing to make", err)
	}
	if report, err := os.ReadFile(filepath.Join(dir, folder, "report.json")); err != nil || !bytes.Contains(report, []byte(`"problem": "failed: exit status 2"`)) {
		t.Errorf("report %s, %v", report, err)
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	got, err := choose(plan, []string{"test", "bench"})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || len(got[0]) != 1 || got[0][0][0].name != "test" || got[1][0][0].name != "bench" {
		t.Errorf("%+v", got)
	}
	if _, err := choose(plan, []string{"tset"}); err == nil || !strings.Contains(err.Error(), `no step "tset": the steps are tidy, `) {
		t.Errorf("error %v", err)
	}
}

// TestPlan: a step's name is that of its files.
func TestPlan(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, s := range all(plan) {
		if names[s.name] {
			t.Errorf("two steps are named %s", s.name)
		}
		names[s.name] = true
	}
}

// onLine calls itself with what is written.
type onLine func(line []byte)

func (f onLine) Write(line []byte) (int, error) {
	f(line)
	return len(line), nil
}
