//go:build e2e && windows

// Package bed runs the real containerd.exe, ctr.exe and containerd-shim-runhcs-v1.exe with
// the runtime shim between them: a [Node] is a containerd.exe with a directory and pipes of
// its own. The tests are the same under Wine and on Windows itself, see [Machine].
//
// Limits of Wine 8:
//   - the first connection to a pipe that go-winio listens on is lost, so the launcher
//     (for shims) and [Node.Start] (for containerd) connect once;
//   - os.RemoveAll of Go 1.25 and later fails ("Invalid function"). containerd renames
//     the bundle ID to .ID first and leaves that, so a bundle of that name counts as
//     removed;
//   - a container's output cannot be read, because its pipes are such listeners too.
package bed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// Machine is this computer: Windows itself, or a Wine prefix with doubles.
type Machine struct {
	// Doubled reports whether this is Wine, where ../wine.sh has installed doubles of
	// hardware and of the Host Compute Service, which records its calls.
	Doubled bool
	// Store is the directory of the drivers of [Machine.NewGPUs].
	Store string

	dir      string // of this run
	programs string // the programs that the suite runs
	missing  string // the reason why there are no nodes, empty if there are
}

// programsVariable is the environment variable for the directory of the programs, which
// ../wine.sh sets.
const programsVariable = "DIRECTX_NRI_WINE_PROGRAMS"

// Main runs the tests of m with *machine and returns the exit status, or it is another
// program that the suite needs.
func Main(m *testing.M, machine **Machine) (status int) {
	if os.Getenv(cniVariable) != "" {
		answerCNI()
		return 0
	}
	if len(os.Args) > 1 {
		if program := programs()[os.Args[1]]; program != nil {
			return exitStatus(program())
		}
	}
	opened, err := open()
	if err != nil {
		return exitStatus(fmt.Errorf("the Windows suite: %w", err))
	}
	*machine = opened
	status = m.Run()
	if !opened.Doubled {
		_ = os.RemoveAll(opened.dir) // Shims may still run in it.
	}
	return status
}

// exitStatus prints an error, if any, and returns the exit status.
func exitStatus(err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func open() (*Machine, error) {
	if programs := os.Getenv(programsVariable); programs != "" {
		// The first program with a window makes Wine remove the GPUs that are not its own.
		_, _, _ = windows.NewLazySystemDLL("user32.dll").NewProc("GetDesktopWindow").Call()
		return &Machine{Doubled: true, Store: DriverStore, dir: `C:`, programs: `Z:` + programs}, installCNI()
	}
	// The paths of containers are limited to 260 characters.
	dir, err := os.MkdirTemp(os.Getenv("SystemDrive")+`\`, "dxw")
	if err != nil {
		return nil, err
	}
	m := &Machine{Store: dir + `\store`, dir: dir, programs: dir + `\programs`}
	if err := m.build(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return m, nil
}

// build builds the programs and adds those of the installed containerd.
func (m *Machine) build() error {
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return err
	}
	for module, packages := range map[string][]string{
		root: {"./cmd/dxctl", "./cmd/directx-advertiser", "./cmd/containerd-shim-directx-v1", "./test/windows/launcher"},
		filepath.Join(root, "test", "parts", "cni"): {"github.com/Microsoft/windows-container-networking/plugins/nat"},
	} {
		build := exec.Command("go", append([]string{"build", "-buildvcs=false", "-o", m.programs + `\`}, packages...)...)
		build.Dir = module
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build the programs: %w\n%s", err, out)
		}
	}
	for _, name := range []string{containerdExe, ctrExe, paths.Runhcs} {
		if err := copyFile(filepath.Join(usualDir, name), m.Executable(name)); err != nil {
			m.missing = fmt.Sprintf("containerd is not installed: %v", err)
		}
	}
	return nil
}

// Executable returns the path of a program of the suite, or of a directory of programs.
func (m *Machine) Executable(elements ...string) string {
	return filepath.Join(append([]string{m.programs}, elements...)...)
}

// NeedsDoubles skips the test on Windows itself, for the reason.
func (m *Machine) NeedsDoubles(t testing.TB, reason string) {
	t.Helper()
	if !m.Doubled {
		t.Skip("this runs under Wine: " + reason)
	}
}

// Limits of a single step and of a program, which take a few seconds and a minute at most on a
// machine of two cores.
const (
	stepTimeout    = 90 * time.Second
	programTimeout = 5 * time.Minute
)

// Run runs a program and returns its standard output. The error has its standard error.
func (m *Machine) Run(program string, args ...string) (stdout string, err error) {
	return m.RunIn(m.dir+`\`, nil, program, args...)
}

// RunIn is [Machine.Run] in a directory, with further environment variables. The output is in
// files, because Wine's services, which any program can start, keep a pipe open.
func (m *Machine) RunIn(dir string, env []string, program string, args ...string) (stdout string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), programTimeout)
	defer cancel()
	outputs, err := os.MkdirTemp("", "run-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(outputs)
	for {
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
		out, errs, err := runInto(cmd, outputs)
		if m.Doubled && errors.Is(err, windows.ERROR_INTERNAL_ERROR) { // See LostProcess.
			continue
		}
		if err != nil {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(errs))
		}
		return string(out), err
	}
}

// runInto runs a command with its output in files in dir, and returns it.
func runInto(cmd *exec.Cmd, dir string) (stdout, stderr []byte, err error) {
	out, err1 := os.Create(filepath.Join(dir, "out"))
	errs, err2 := os.Create(filepath.Join(dir, "err"))
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, err
	}
	defer out.Close()
	defer errs.Close()
	cmd.Stdout, cmd.Stderr = out, errs
	err = cmd.Run()
	stdout, err1 = os.ReadFile(out.Name())
	stderr, err2 = os.ReadFile(errs.Name())
	return stdout, stderr, errors.Join(err, err1, err2)
}

// Replace replaces a file atomically, because others may read it. While one does, it
// cannot be replaced.
func Replace(t testing.TB, path string, content []byte) {
	t.Helper()
	testutil.WriteFile(t, path+".new", string(content), 0o600)
	Rename(t, path+".new", path)
}

// Rename renames a file. While another process reads it, it cannot be renamed.
func Rename(t testing.TB, from, to string) {
	t.Helper()
	Eventually(t, "rename "+from, func() error { return os.Rename(from, to) })
}

// ReadFile returns a file's content, nil if there is none.
func ReadFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := durable.Read(path, math.MaxInt64) // A file that is being replaced cannot be opened.
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return data
}

// copyFile copies a program. It is no link: while a program of another node runs from it, a link cannot be deleted.
func copyFile(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755) //nolint:gosec // a program
}

// Eventually waits until check returns nil.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(stepTimeout); ; time.Sleep(20 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}
