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
	"strings"
	"testing"
	"time"
	"unsafe"

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

// Main runs the tests of m with *machine and returns the exit status. With the argument of
// another program that the suite needs, it runs that one.
func Main(m *testing.M, machine **Machine) (status int) {
	if os.Getenv(cniVariable) != "" {
		answerCNI()
		return 0
	}
	programs := map[string]func(args []string) error{watchCommand: watch, uuidsCommand: printUUIDs}
	if len(os.Args) > 1 && programs[os.Args[1]] != nil {
		if err := programs[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	opened, err := open()
	if err != nil {
		fmt.Fprintf(os.Stderr, "the Windows suite: %v\n", err)
		return 1
	}
	*machine = opened
	status = m.Run()
	if !opened.Doubled {
		_ = os.RemoveAll(opened.dir) // Shims may still run in it.
	}
	return status
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
	m.describe()
	return m, nil
}

// describe prints what this machine has, so that the log says what it is about.
func (m *Machine) describe() {
	fmt.Println(os.Getenv("ImageOS"), os.Getenv("ImageVersion")) // of GitHub's runners
	for _, command := range [][]string{{"cmd", "/c", "ver"}, {m.Executable(containerdExe), "--version"}, {m.Executable(paths.Runhcs), "--version"}, {kubeletExe, "--version"}} {
		out, err := m.Program(command[0], command[1:]...)
		fmt.Println(filepath.Base(command[0]), strings.TrimSpace(out), err)
	}
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
		installed := filepath.Join(usualDir, name)
		if err := copyFile(installed, m.Executable(name)); err != nil {
			m.missing = fmt.Sprintf("containerd is not installed: %v", err)
		}
	}
	return nil
}

// self returns the path of this program.
func self(t testing.TB) string {
	t.Helper()
	path, err := os.Executable()
	testutil.NoError(t, err)
	return path
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

// stepTimeout limits a single step, which takes a few seconds on a machine of two cores.
const stepTimeout = 90 * time.Second

// Command returns a command that is killed when ctx ends.
func (m *Machine) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = m.dir + `\`
	return cmd
}

// output runs a command and returns its output. The error has its standard error. It uses
// files, because Wine's services, which any program can start, keep a pipe open.
func (m *Machine) output(cmd *exec.Cmd) (stdout, stderr string, err error) {
	var files [2]*os.File
	for i := range files {
		f, err := os.CreateTemp("", "output-")
		if err != nil {
			return "", "", err
		}
		defer os.Remove(f.Name())
		defer f.Close()
		files[i] = f
	}
	cmd.Stdout, cmd.Stderr = files[0], files[1]
	again := *cmd
	runErr := cmd.Run()
	for m.Doubled && errors.Is(runErr, windows.ERROR_INTERNAL_ERROR) { // See lostProcess.
		*cmd = again
		runErr = cmd.Run()
	}
	out, err1 := os.ReadFile(files[0].Name())
	errs, err2 := os.ReadFile(files[1].Name())
	if err := errors.Join(err1, err2); err != nil {
		return "", "", err
	}
	if runErr != nil {
		runErr = fmt.Errorf("%w: %s", runErr, bytes.TrimSpace(errs))
	}
	return string(out), string(errs), runErr
}

// Exec runs a command and returns its output. It fails the test if the exit status is
// another.
func (m *Machine) Exec(t testing.TB, status int, cmd *exec.Cmd) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := m.output(cmd)
	if got := cmd.ProcessState.ExitCode(); got != status {
		t.Errorf("%s: %v, want exit status %d\n%s", cmd, err, status, stdout)
	}
	return stdout, stderr
}

// Program runs a program to its end and returns its standard output.
func (m *Machine) Program(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	stdout, _, err := m.output(m.Command(ctx, name, args...))
	return stdout, err
}

// Background is a program that runs beside the test.
type Background struct {
	log string
	cmd *exec.Cmd
}

// Background starts a program. Its output is printed if the test fails. It ends with the
// test.
func (m *Machine) Background(t testing.TB, cmd *exec.Cmd) *Background {
	t.Helper()
	b := &Background{log: filepath.Join(t.TempDir(), "log"), cmd: cmd}
	log, err := os.Create(b.log)
	testutil.NoError(t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	testutil.NoError(t, cmd.Start())
	t.Cleanup(func() {
		b.Kill()
		if t.Failed() {
			t.Logf("---- %s\n%s", cmd, b.Log())
		}
	})
	return b
}

// Kill kills the program if it runs.
func (b *Background) Kill() {
	if b.cmd.ProcessState == nil {
		_ = b.cmd.Process.Kill() // An error means that it has ended.
		_ = b.cmd.Wait()
	}
}

// Log returns what the program has printed.
func (b *Background) Log() string {
	data, _ := os.ReadFile(b.log) // It exists.
	return string(data)
}

// Process is a process of this machine.
type Process struct {
	PID     uint32
	Command string
}

// Kill kills the process if it runs.
func (p Process) Kill(t testing.TB) {
	t.Helper()
	process, err := os.FindProcess(int(p.PID))
	if err == nil {
		err = process.Kill()
	}
	t.Logf("killed %s: %v", p.Command, err) // An error means that it has ended.
}

// processes returns the processes whose command line can be read.
func processes() (found []Process) {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = windows.CloseHandle(snapshot) }()
	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}
	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		if line, err := commandLine(entry.ProcessID); err == nil {
			found = append(found, Process{entry.ProcessID, line})
		}
	}
	return found
}

// commandLine returns the command line of a process.
func commandLine(pid uint32) (string, error) {
	process, err := windows.OpenProcess(windows.PROCESS_QUERY_INFORMATION|windows.PROCESS_VM_READ, false, pid)
	if err != nil {
		return "", err
	}
	defer func() { _ = windows.CloseHandle(process) }()
	var info windows.PROCESS_BASIC_INFORMATION
	if err := windows.NtQueryInformationProcess(process, windows.ProcessBasicInformation, unsafe.Pointer(&info), uint32(unsafe.Sizeof(info)), nil); err != nil {
		return "", err
	}
	read := func(address, into unsafe.Pointer, size uintptr) error {
		return windows.ReadProcessMemory(process, uintptr(address), (*byte)(into), size, nil)
	}
	var block windows.PEB
	if err := read(unsafe.Pointer(info.PebBaseAddress), unsafe.Pointer(&block), unsafe.Sizeof(block)); err != nil {
		return "", err
	}
	var parameters windows.RTL_USER_PROCESS_PARAMETERS
	if err := read(unsafe.Pointer(block.ProcessParameters), unsafe.Pointer(&parameters), unsafe.Sizeof(parameters)); err != nil {
		return "", err
	}
	line := make([]uint16, parameters.CommandLine.Length/2+1)
	if err := read(unsafe.Pointer(parameters.CommandLine.Buffer), unsafe.Pointer(&line[0]), uintptr(parameters.CommandLine.Length)); err != nil {
		return "", err
	}
	return windows.UTF16ToString(line), nil
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
	within(t, stepTimeout, what, check)
}

// within is [Eventually] with another limit.
func within(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}
