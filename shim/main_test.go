//go:build linux

package shim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// The names of links to this test's program that select what it does: our shim, our shim with a panic, and the
// real shim.
const (
	ourName    = "containerd-shim-directx-v1"
	brokenName = "broken-shim"
	realName   = "containerd-shim-runc-v2"
)

func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case ourName:
		os.Exit(Main("test", hostfiles.Root("")))
	case brokenName: // It has no files, so it panics when it reads them.
		os.Exit(Main("test", nil))
	case realName:
		os.Exit(realMain())
	}
	os.Exit(m.Run())
}

// realCall is what the real shim was called with.
type realCall struct {
	Args  []string
	Stdin string
	Mark  string // of the environment
	Dir   string
}

// realMain is the real shim: it prints its call.
func realMain() int {
	stdin, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 99
	}
	dir, err := os.Getwd()
	if err != nil {
		return 99
	}
	out, err := json.Marshal(realCall{Args: os.Args[1:], Stdin: string(stdin), Mark: os.Getenv("MARK"), Dir: dir})
	if err != nil {
		return 99
	}
	fmt.Printf("%s", out)
	fmt.Fprint(os.Stderr, os.Getenv("REAL_STDERR"))
	status, _ := strconv.Atoi(os.Getenv("REAL_STATUS")) // 0 when there is none
	return status
}

// link makes this test's program the one at a path, whose name selects what it does.
func (b *bed) link(name string) {
	b.t.Helper()
	self, err := os.Executable()
	testutil.NoError(b.t, err, os.MkdirAll(filepath.Dir(b.path(name)), 0o700), os.Symlink(self, b.path(name)))
}

// result is what came of a call.
type result struct {
	stdout, stderr string
	status         int
}

// run runs the program at a path as containerd does, with additions to the environment.
func (b *bed) run(program string, args []string, env ...string) result {
	b.t.Helper()
	command := exec.Command(b.path(program), args...)
	command.Dir = b.path("c1")
	command.Stdin = strings.NewReader("runtime options")
	command.Env = append(append(os.Environ(), paths.StateDirVariable+"="+b.path("state"), "MARK=kept"), env...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil && command.ProcessState == nil {
		b.t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), command.ProcessState.ExitCode()}
}

func startArgs() []string { return []string{"-namespace", "default", "-id", "c1", "start"} }

// TestCalls: all calls reach the real shim as they are, a start after its spec was edited.
func TestCalls(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.link("bin/" + ourName)
	b.link("bin/" + realName)
	spec := standalone("DIRECTX_VISIBLE_DEVICES=all")
	for _, args := range [][]string{
		{"-namespace", "default", "-id", "c1", "-bundle", "/x", "delete"}, {"-info"}, {"-v"}, {}, {"-id", "start", "delete"}, {"a b", `"`, ""}, startArgs(),
	} {
		b.write("c1/config.json", spec)
		r := b.run("bin/"+ourName, args)
		var got realCall
		if err := json.Unmarshal([]byte(r.stdout), &got); err != nil || r.status != 0 || r.stderr != "" {
			t.Fatalf("%q: %+v", args, r)
		}
		if diff := cmp.Diff(realCall{Args: args, Stdin: "runtime options", Mark: "kept", Dir: b.path("c1")}, got); diff != "" {
			t.Errorf("the real shim's call (-want +got):\n%s", diff)
		}
		if isEdited := b.read("c1/config.json") != spec; isEdited != slices.Equal(args, startArgs()) {
			t.Errorf("%q: config.json is edited: %t", args, isEdited)
		}
	}
	r := b.run("bin/"+ourName, []string{"delete"}, "REAL_STATUS=42", "REAL_STDERR=of the real shim\n")
	if r.status != 42 || r.stderr != "of the real shim\n" {
		t.Errorf("%+v", r)
	}
	testutil.NoError(t, os.Mkdir(b.path("other"), 0o700), os.Rename(b.path("bin/"+realName), b.path("other/"+realName)))
	if r := b.run("bin/"+ourName, startArgs(), "PATH="+b.path("other")); r.status != 0 || r.stdout == "" {
		t.Errorf("the real shim on PATH: %+v", r)
	}
	if r := b.run("bin/"+ourName, []string{"delete"}, "PATH="); r.status == 0 || !strings.HasPrefix(r.stderr, "directx-nri: the real shim is neither") {
		t.Errorf("no real shim: %+v", r)
	}
}

// TestRefusals: a start that fails prints one line, which the log has, too.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		program, realText string // the real shim is a file with this text, or does not exist
		spec              string
		says, logs        string
	}{
		"standalone":      {ourName, "x", standalone("DIRECTX_VISIBLE_DEVICES=7"), `directx-nri: container "c1" is not started: `, "reason=request"},
		"pod":             {ourName, "x", interlocked("u1"), `directx-nri: container "main" of pod default/web is not started: `, "container=main"},
		"malformed":       {ourName, "x", "{", `directx-nri: container "c1" is not started: `, "container=c1"},
		"panic":           {brokenName, "x", standalone("DIRECTX_VISIBLE_DEVICES=all"), "internal error in directx-nri", ".go:"},
		"real is damaged": {ourName, "x", standalone(), `directx-nri: container "c1" is not started: run `, "exec format error"},
		"no real shim":    {ourName, "", standalone(), `directx-nri: container "c1" is not started: `, "is neither beside"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t)
			b.link("bin/" + test.program)
			if test.realText != "" {
				testutil.WriteFile(t, b.path("bin/"+realName), test.realText, 0o700)
			}
			b.write("c1/config.json", test.spec)
			r := b.run("bin/"+test.program, startArgs(), "PATH=") // This machine may have a real shim.
			if r.status != exitFailure || r.stdout != "" || !strings.Contains(r.stderr, test.says) || strings.ContainsAny(r.stderr, "\r\n") {
				t.Errorf("%+v", r)
			}
			log := b.read("state/shim.log")
			if strings.Count(log, `level=error msg="Container refused"`) != 1 || !strings.Contains(log, test.logs) {
				t.Errorf("logged %s", log)
			}
		})
	}
}

// TestHungLog: a refusal is reported while the disk of the log does not respond.
func TestHungLog(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.link("bin/" + ourName)
	b.link("bin/" + realName)
	testutil.NoError(t, syscall.Mkfifo(b.path("state/shim.log"), 0o600)) // Opening it blocks.
	b.write("c1/config.json", standalone("DIRECTX_VISIBLE_DEVICES=7"))
	if r := b.run("bin/"+ourName, startArgs()); r.status != exitFailure || !strings.Contains(r.stderr, "is not started") {
		t.Errorf("%+v", r)
	}
}

func TestMainByHand(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.link(ourName)
	for flag, want := range map[string]string{
		shimfile.SelfTestFlag: shimfile.SelfTestPassed, "--help": "ctr run --runtime io.containerd.directx.v1", "--version": ourName + " test",
	} {
		if got := b.run(ourName, []string{flag}); got.status != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("%s: %+v", flag, got)
		}
	}
	if got := b.run(ourName, []string{shimfile.SelfTestFlag}, shimfile.SelfTestParent+"="+b.path("none")); got.status == 0 {
		t.Errorf("the self-test uses another directory: %+v", got)
	}
}
