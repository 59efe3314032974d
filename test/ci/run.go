//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// folder is where the run's files are.
const folder = "out/ci"

// grace is how long a step may take to clean up when the run is ended.
const grace = time.Minute

// runner runs steps, some at once.
type runner struct {
	program string // this one
	folder  string // of the run's files

	// ordinary has steps that need no root run without it.
	ordinary bool

	mu   sync.Mutex
	out  io.Writer
	done map[string]outcome
}

func newRunner(folder string, out io.Writer) (*runner, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return &runner{program: program, folder: folder, out: out, done: map[string]outcome{}}, nil
}

// runAll runs the stages, and then prints the table and writes the report.
func (r *runner) runAll(ctx context.Context, stages []stage) error {
	steps := all(stages)
	if i := slices.IndexFunc(steps, func(s step) bool { return !s.aside }); i >= 0 && os.Geteuid() != 0 {
		return fmt.Errorf("step %s needs root: run this as root, or name steps that do not, such as lint and test", steps[i].name)
	}
	if os.Geteuid() == 0 {
		if err := dropped(ctx); err != nil {
			r.say(fmt.Sprintf("ci: all steps run as root, since none can run as an ordinary user: %v", err))
		} else {
			r.ordinary = true
		}
	}
	report := filepath.Join(r.folder, "report.json")
	// A run that is cut short has none, and not that of the run before it.
	if err := os.RemoveAll(report); err != nil {
		return err
	}
	begin := time.Now()
	for _, lanes := range stages {
		var group sync.WaitGroup
		for _, lane := range lanes {
			group.Go(func() {
				for _, s := range lane {
					if ctx.Err() != nil {
						return
					}
					r.run(ctx, s)
				}
			})
		}
		group.Wait()
		if len(lanes) > 1 {
			r.repeat(ctx, slices.Concat(lanes...))
		}
	}
	var outcomes []outcome
	for _, s := range steps {
		o, ok := r.done[s.name]
		if !ok {
			o = outcome{Step: s.name, Problem: "did not run"}
		}
		outcomes = append(outcomes, o)
	}
	text, good := table(outcomes, time.Since(begin))
	r.say("\n" + text)
	if err := writeReport(report, outcomes); err != nil {
		return err
	}
	if !good {
		return fmt.Errorf("the run has failed; each step's output is in %s", r.folder)
	}
	return nil
}

// repeat runs those of the steps once more whose tests have failed, one after the
// other: real programs wait for each other, and may have waited in vain for a
// processor that the lane beside them had. The run tells of both.
func (r *runner) repeat(ctx context.Context, steps []step) {
	for _, s := range steps {
		first, ok := r.done[s.name]
		if ctx.Err() != nil || !ok || !s.tests || first.count(failed) == 0 {
			continue
		}
		log := filepath.Join(r.folder, s.name)
		_ = os.Rename(log+".log", log+".first.log") // What is lost is lost.
		r.run(ctx, s)
		o := r.done[s.name]
		o.Disturbed = first.failures()
		o.Seconds += first.Seconds
		r.done[s.name] = o
	}
}

// all returns the steps in the plan's order.
func all(stages []stage) []step {
	var steps []step
	for _, stage := range stages {
		for _, lane := range stage {
			steps = append(steps, lane...)
		}
	}
	return steps
}

// run runs one step and notes its outcome.
func (r *runner) run(ctx context.Context, s step) {
	r.say("=== " + s.name + ": " + strings.Join(s.command, " "))
	begin := time.Now()
	results, err := r.execute(ctx, s)
	o := judge(s, results, err)
	o.Seconds = time.Since(begin).Seconds()
	r.mu.Lock()
	r.done[s.name] = o
	r.mu.Unlock()
	r.say("=== " + s.name + ": " + o.verdict())
}

func (r *runner) say(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintln(r.out, line) // Nobody may be reading.
}

// execute runs the command of a step and returns what its tests came to.
func (r *runner) execute(ctx context.Context, s step) (results []result, err error) {
	resultsFile, err := filepath.Abs(filepath.Join(r.folder, s.name+".results"))
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(resultsFile); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(r.folder, s.name+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()

	args := s.command
	if s.aside {
		args = append([]string{"nice", "-n", "19"}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	// What another run's tests came to, as another user's, is not this one's.
	cmd.Env = append(os.Environ(), "CI=true", "GOTEST="+r.program+" gotest -count=1", resultsVar+"="+resultsFile)
	shown := &prefixed{runner: r, prefix: fmt.Sprintf("%-8s| ", s.name)}
	defer shown.end()
	cmd.Stdout = io.MultiWriter(log, shown)
	cmd.Stderr = cmd.Stdout
	cmd.SysProcAttr = attributes(s.aside && r.ordinary)
	// A step is many processes.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = grace
	err = cmd.Run()
	if cmd.Process != nil {
		// What is left of it, if anything, would be in the next step's way.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	results, readErr := readResults(resultsFile)
	return last(results), errors.Join(err, readErr)
}

// attributes has a command be a process group of its own. As an ordinary user,
// it has no rights but those that the owner of this run's files has as such: it
// is one user, of ID 1000, of a user namespace.
func attributes(ordinary bool) *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Setpgid: true}
	if ordinary {
		attributes.Cloneflags = syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Geteuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Getegid(), Size: 1}}
	}
	return attributes
}

// dropped returns why a command that is an ordinary user by [attributes] is of
// no use here: there may be no user namespaces, or this folder or Go's caches be
// another user's.
func dropped(ctx context.Context) error {
	const script = `for folder in . "$(go env GOCACHE)" "$(go env GOMODCACHE)"; do
		mkdir -p "$folder" && test -w "$folder" || { echo "it may not write to $folder"; exit 1; }
	done`
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.SysProcAttr = attributes(true)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// prefixed prints lines of a step with its name.
type prefixed struct {
	runner *runner
	prefix string
	rest   []byte // a line's begin
}

// Write prints the lines that have ended.
func (p *prefixed) Write(data []byte) (int, error) {
	p.rest = append(p.rest, data...)
	for {
		line, rest, found := bytes.Cut(p.rest, []byte("\n"))
		if !found {
			return len(data), nil
		}
		p.runner.say(p.prefix + string(line))
		p.rest = rest
	}
}

func (p *prefixed) end() {
	if len(p.rest) > 0 {
		p.runner.say(p.prefix + string(p.rest))
	}
}
