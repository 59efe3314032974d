package shimfile

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
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// mark precedes the word at the end of a copy of this test's program that says what the copy
// does in its self-test.
const mark = "\nshim made for a test: "

// What a copy does.
const (
	good    = "good"
	other   = "another good one"
	broken  = "broken"
	chatty  = "chatty"
	wrong   = "something else"
	hanging = "hanging"
)

// runFlag makes a copy run until its standard input ends.
const runFlag = "--run-for-a-test"

func TestMain(m *testing.M) {
	// Otherwise each process waits a second at its end with the race detector.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if len(os.Args) == 2 {
		switch os.Args[1] {
		case SelfTestFlag:
			os.Exit(actAsShim()) //nolint:forbidigo // this process is the shim's
		case runFlag:
			_, _ = io.Copy(io.Discard, os.Stdin)
			return
		}
	}
	m.Run()
}

// actAsShim is what a copy of this program does.
func actAsShim() int {
	self, err := os.Executable()
	if err != nil {
		return 3
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return 3
	}
	_, does, _ := strings.Cut(string(program[bytes.LastIndex(program, []byte(mark)):]), mark)
	if dir := os.Getenv(SelfTestParent); !strings.Contains(dir, ".install-") {
		fmt.Fprintln(os.Stderr, "the files of the self-test are in "+dir)
		return 1
	}
	switch does {
	case broken:
		fmt.Fprintln(os.Stderr, "I am\nbroken")
		return 1
	case chatty:
		fmt.Println("hello")
	case hanging:
		time.Sleep(time.Hour)
	case wrong:
		return 0
	}
	fmt.Println(SelfTestPassed)
	return 0
}

// program returns a copy of this test's program that does what its mark says.
func program(t *testing.T, does string) []byte {
	t.Helper()
	self, err := os.Executable()
	testutil.NoError(t, err)
	data, err := os.ReadFile(self)
	testutil.NoError(t, err)
	return append(data, mark+does...)
}

// node is a directory with shims beside the one that they are installed in.
type node struct {
	t    *testing.T
	path string
}

func newNode(t *testing.T) node {
	return node{t, filepath.Join(t.TempDir(), "bin", FileName())}
}

func (n node) source(does string) string {
	n.t.Helper()
	path := filepath.Join(filepath.Dir(filepath.Dir(n.path)), does+filepath.Ext(n.path))
	testutil.WriteFile(n.t, path, string(program(n.t, does)), 0o600)
	return path
}

func (n node) install(does string) (bool, error) {
	n.t.Helper()
	return Install(n.t.Context(), n.source(does), n.path)
}

func (n node) mustInstall(does string) {
	n.t.Helper()
	if changed, err := n.install(does); err != nil || !changed {
		n.t.Fatalf("install %s: changed %t, %v", does, changed, err)
	}
}

// interrupted leaves what an installation that was killed leaves.
func (n node) interrupted() (workDir string) {
	n.t.Helper()
	workDir = n.path + ".install-1"
	for _, file := range []string{FileName(), "self-test/config.json"} {
		testutil.WriteFile(n.t, filepath.Join(workDir, file), "half", 0o700)
	}
	return workDir
}

// has checks the names of the files and what they do.
func (n node) has(want map[string]string) {
	n.t.Helper()
	entries, err := os.ReadDir(filepath.Dir(n.path))
	testutil.NoError(n.t, err)
	got := map[string]string{}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(filepath.Dir(n.path), entry.Name()))
		testutil.NoError(n.t, err)
		_, got[entry.Name()], _ = strings.Cut(string(data[max(0, bytes.LastIndex(data, []byte(mark))):]), mark)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		n.t.Errorf("there are %v, want %v", got, want)
	}
}

func TestInstall(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.mustInstall(good)
	n.has(map[string]string{FileName(): good})
	if !isExecutable(n.path) {
		t.Error("it cannot be run")
	}
	if changed, err := n.install(good); err != nil || changed {
		t.Errorf("again: changed %t, %v", changed, err)
	}
	n.has(map[string]string{FileName(): good})

	// Windows does not replace or remove a program that runs.
	running := exec.CommandContext(t.Context(), n.path, runFlag)
	end, err := running.StdinPipe()
	testutil.NoError(t, err)
	testutil.NoError(t, running.Start())
	n.mustInstall(other)
	data, err := os.ReadFile(n.path)
	if err != nil || !bytes.HasSuffix(data, []byte(mark+other)) {
		t.Errorf("the new one is not in its place: %v", err)
	}
	testutil.NoError(t, end.Close(), running.Wait())
	if _, err := Remove(n.path); err != nil {
		t.Error(err)
	}
	n.has(map[string]string{})
}

func TestInstallRefuses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		does  string
		first bool // there is no shim yet
		says  string
	}{
		{does: broken, says: ".install"}, // not yet in its place
		{does: chatty, says: `it printed "hello self-test passed" instead of "self-test passed"`},
		{does: wrong, says: `is it containerd-shim-directx-v1?`},
		{does: broken, first: true, says: "I am broken"},
	} {
		t.Run(fmt.Sprintf("%s, first %t", test.does, test.first), func(t *testing.T) {
			t.Parallel()
			n, want := newNode(t), map[string]string{}
			if !test.first {
				n.mustInstall(good)
				want[FileName()] = good
			}
			_, err := n.install(test.does)
			testutil.CheckError(t, "install", err, test.says)
			if !errors.Is(err, ErrSelfTest) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, want %v in one line", err, ErrSelfTest)
			}
			n.has(want)
		})
	}
}

func TestInstallEndsWithItsContext(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.mustInstall(good)
	source := n.source(hanging)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // After the self-test has begun, also on a busy machine.
	defer cancel()
	if _, err := Install(ctx, source, n.path); !errors.Is(err, ErrSelfTest) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	n.has(map[string]string{FileName(): good})
}

func TestInstallTestsTheSameFileAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.mustInstall(good)
	testutil.WriteFile(t, n.path, string(program(t, broken)), 0o755)
	if changed, err := n.install(broken); changed || !errors.Is(err, ErrSelfTest) {
		t.Errorf("changed %t, %v", changed, err)
	}
	if _, err := Install(t.Context(), n.path+".none", n.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no source: %v", err)
	}
}

func TestInstallTwoAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.mustInstall(good)
	sources := []string{n.source(other), n.source(broken), n.source(good + " too")}
	errs := make(chan error, len(sources))
	for _, source := range sources {
		go func() {
			_, err := Install(t.Context(), source, n.path)
			errs <- err
		}()
	}
	failed := 0
	for range sources {
		if err := <-errs; err != nil {
			failed++
			if !errors.Is(err, ErrSelfTest) {
				t.Error(err)
			}
		}
	}
	if failed != 1 {
		t.Errorf("%d failed, want the broken one", failed)
	}
	testutil.NoError(t, SelfTest(t.Context(), n.path, n.path+".install-"))
	entries, err := os.ReadDir(filepath.Dir(n.path))
	if err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func TestRemove(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.mustInstall(good)
	dir, workDir := filepath.Dir(n.path), n.interrupted()
	n.mustInstall(other) // A killed installation does not prevent the next one.
	foreign := []string{filepath.Join(dir, "containerd"), n.path + "-of-mine"}
	for _, file := range foreign {
		testutil.WriteFile(t, file, "", 0o600)
	}
	if removed, err := Remove(n.path); err != nil || !slices.Equal(removed, []string{n.path, workDir}) {
		t.Errorf("removed %v, %v", removed, err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != len(foreign) {
		t.Errorf("left: %v, %v", entries, err)
	}
	for _, path := range []string{n.path, filepath.Join(dir, "none", FileName())} {
		if removed, err := Remove(path); err != nil || len(removed) > 0 {
			t.Errorf("again: %v, %v", removed, err)
		}
	}
}

func TestFileNames(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"": false, "/usr/local/bin/" + BaseName: true, `C:\Program Files\containerd\Containerd-Shim-DirectX-v1.EXE`: true,
		BaseName: true, "/usr/local/bin/containerd-shim-runc-v2": false, "/" + BaseName + "/x": false,
	} {
		if got := IsShim(path); got != want {
			t.Errorf("IsShim(%q) = %t", path, got)
		}
	}
}
