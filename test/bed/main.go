//go:build e2e && linux

package bed

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The variables by which the test binary's three processes know what they are,
// and what the outermost one found out.
const (
	roleVar = "DIRECTX_NRI_E2E_ROLE" // "", roleInit or roleTests
	skipVar = "DIRECTX_NRI_E2E_SKIP" // why the tests cannot run here
	dirVar  = "DIRECTX_NRI_E2E_DIR"  // the run's temporary directory

	roleInit  = "init"
	roleTests = "tests"
)

// RequiredVar set to "required" turns what would skip the suite into a
// failure, as CI=true does.
const RequiredVar = "DIRECTX_NRI_E2E"

// exitFailed is the exit status for a suite that could not run or could not
// clean up; `go test` reports it as a failure.
const exitFailed = 1

// Ground is what a suite stands on: what it needs of the machine, and what it
// gets of its own in place of the machine's.
type Ground struct {
	// Dirs are directories of the machine whose place the real parts fix. The run
	// mounts its own over each of them, inside the namespace only.
	Dirs []Dir
	// Network gives the run a network of its own: the loopback device, with these
	// addresses beside 127.0.0.1. Nil leaves it the machine's.
	Network []netip.Addr
	// Check returns why the suite cannot run here, with what to do about it.
	Check func(Parts) error
}

// Dir is a directory of the machine that a run replaces by its own.
type Dir struct {
	Path string
	// Copy copies the content of the machine's directory; otherwise it is empty.
	Copy bool
}

// own is the path of the run's directory.
func (f Dir) own(dir string) string {
	return filepath.Join(dir, "over"+strings.ReplaceAll(f.Path, "/", "-"))
}

// Main runs the tests of m for a node of this package and returns the exit
// status.
func Main(m *testing.M) int {
	return Ground{
		Dirs: []Dir{
			{Path: kubeletRoot},       // its device plugin directory cannot be moved
			{Path: "/run/containerd"}, // shim sockets and runc's state
		},
		Check: Parts.check,
	}.Main(m)
}

// Main runs the tests of m and returns the exit status. The test binary runs
// as three processes: the outer one checks what the suite needs and cleans up,
// its child is the first process of new mount and PID namespaces, and that
// one's child runs the tests.
func (g Ground) Main(m *testing.M) int {
	switch os.Getenv(roleVar) {
	case roleInit:
		return g.runInit()
	case roleTests:
		return m.Run()
	}
	if err := g.preflight(); err != nil {
		if required() {
			fmt.Fprintf(os.Stderr, "the end-to-end suite is required here and cannot run: %v\n", err)
			return exitFailed
		}
		fmt.Fprintf(os.Stderr, "the end-to-end suite is skipped: %v\n", err)
		if err := os.Setenv(skipVar, err.Error()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return exitFailed
		}
		return m.Run()
	}
	status, err := g.supervise()
	if err != nil {
		fmt.Fprintf(os.Stderr, "end-to-end suite: %v\n", err)
		status = max(status, exitFailed)
	}
	return status
}

func required() bool {
	return os.Getenv("CI") == "true" || os.Getenv(RequiredVar) == "required"
}

// preflight returns why the suite cannot run on this machine, with what to do
// about it.
func (g Ground) preflight() error {
	if os.Geteuid() != 0 {
		return errors.New("it needs root for containers: run it with sudo")
	}
	parts, err := FindParts()
	if err != nil {
		return err
	}
	if err := g.Check(parts); err != nil {
		return err
	}
	if err := g.hides(parts); err != nil {
		return err
	}
	if _, err := os.Stat("/sys/fs/cgroup"); errors.Is(err, fs.ErrNotExist) {
		return errors.New("control groups are not mounted at /sys/fs/cgroup: the suite needs them for containers")
	}
	if pid := FindProcess("kubelet"); pid != 0 {
		return fmt.Errorf("a kubelet runs on this machine already (process %d), and two would fight over the node: stop it first", pid)
	}
	return nil
}

// hides returns an error when something that the run needs lies in a directory that
// it does not see.
func (g Ground) hides(parts Parts) error {
	needed := []string{parts.Root, parts.dir, parts.products, os.TempDir()}
	for _, name := range []string{"runc", "busybox", "go"} {
		if path, err := exec.LookPath(name); err == nil {
			needed = append(needed, path)
		}
	}
	for _, path := range needed {
		for _, dir := range g.Dirs {
			if !dir.Copy && strings.HasPrefix(path+"/", dir.Path+"/") {
				return fmt.Errorf("%s lies below %s, which the run replaces: move it elsewhere", path, dir.Path)
			}
		}
	}
	return nil
}

// FindProcess returns the ID of a process with that command name, 0 when there
// is none.
func FindProcess(name string) int {
	comms, _ := filepath.Glob("/proc/[0-9]*/comm") // The pattern is well formed.
	for _, comm := range comms {
		data, err := os.ReadFile(comm)
		if err != nil || strings.TrimSpace(string(data)) != name {
			continue // It ended meanwhile, or is another.
		}
		var pid int
		if _, err := fmt.Sscanf(comm, "/proc/%d/comm", &pid); err == nil {
			return pid
		}
	}
	return 0
}

// tunables are the kernel settings that a kubelet changes for the whole
// machine when it starts.
var tunables = []string{
	"/proc/sys/vm/overcommit_memory",
	"/proc/sys/vm/panic_on_oom",
	"/proc/sys/kernel/panic",
	"/proc/sys/kernel/panic_on_oops",
	"/proc/sys/kernel/keys/root_maxkeys",
	"/proc/sys/kernel/keys/root_maxbytes",
}

// supervise runs the tests in namespaces of their own and takes away
// everything outside of them that the run made. It returns the tests' exit
// status.
func (g Ground) supervise() (status int, err error) {
	dir, err := os.MkdirTemp(os.Getenv("DIRECTX_NRI_E2E_TMP"), "dx")
	if err != nil {
		return exitFailed, fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() {
		if rmErr := os.RemoveAll(dir); rmErr != nil {
			err = errors.Join(err, fmt.Errorf("remove the run's directory: %w", rmErr))
		}
	}()
	// Sockets lie below dir, and their paths hold 107 bytes at most.
	if len(dir) > 40 {
		return exitFailed, fmt.Errorf("the temporary directory's path %s is too long for the sockets in it: set DIRECTX_NRI_E2E_TMP=/tmp", dir)
	}
	defer func() { err = errors.Join(err, RemoveCgroups(cgroupRoot(dir))) }()

	for _, d := range g.Dirs {
		if err := d.make(dir); err != nil {
			return exitFailed, fmt.Errorf("make the directory for %s: %w", d.Path, err)
		}
		made, err := mkdirAll(d.Path)
		if err != nil {
			return exitFailed, err
		}
		defer func() {
			for i := len(made) - 1; i >= 0; i-- {
				_ = os.Remove(made[i]) // Fails when someone put something there, which is then theirs.
			}
		}()
	}
	restore, err := saveTunables()
	if err != nil {
		return exitFailed, err
	}
	defer func() { err = errors.Join(err, restore()) }()
	return g.runNamespaced(dir)
}

// make makes the run's directory.
func (f Dir) make(dir string) error {
	own := f.own(dir)
	if !f.Copy {
		return os.Mkdir(own, 0o755)
	}
	if out, err := exec.Command("cp", "--archive", f.Path, own).CombinedOutput(); err != nil {
		return fmt.Errorf("copy it: %w: %s", err, out)
	}
	return nil
}

// runNamespaced runs this program again as the first process of new
// namespaces and waits for it. A signal that ends this process ends that one,
// and with it every process of the namespace.
func (g Ground) runNamespaced(dir string) (int, error) {
	// The child is killed when the thread that started it ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	defer signal.Stop(signals)

	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), roleVar+"="+roleInit, dirVar+"="+dir)
	namespaces := uintptr(syscall.CLONE_NEWNS | syscall.CLONE_NEWPID)
	if g.Network != nil {
		namespaces |= syscall.CLONE_NEWNET
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: namespaces,
		Pdeathsig:  syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return exitFailed, fmt.Errorf("start the tests in namespaces of their own: %w", err)
	}
	done := make(chan struct{})
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		select {
		case <-signals:
			_ = cmd.Process.Kill() // Fails when it ended meanwhile.
		case <-done:
		}
	}()
	err := cmd.Wait()
	close(done)
	<-watching
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return exit.ExitCode(), nil
	}
	return exitFailed, fmt.Errorf("run the tests: %w", err)
}

// mkdirAll makes path and its parents and returns those that it made, parents
// first.
func mkdirAll(path string) ([]string, error) {
	var missing []string
	for p := path; ; p = filepath.Dir(p) {
		_, err := os.Stat(p)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look at %s: %w", p, err)
		}
		missing = append([]string{p}, missing...)
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("make %s: %w", path, err)
	}
	return missing, nil
}

// saveTunables notes the machine's kernel settings and returns what puts them
// back.
func saveTunables() (restore func() error, err error) {
	values := make(map[string][]byte)
	for _, path := range tunables {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // A kernel without it.
		}
		if err != nil {
			return nil, fmt.Errorf("note a kernel setting: %w", err)
		}
		values[path] = data
	}
	return func() error {
		var errs error
		for path, data := range values {
			if err := os.WriteFile(path, data, 0); err != nil {
				errs = errors.Join(errs, fmt.Errorf("restore a kernel setting: %w", err))
			}
		}
		return errs
	}, nil
}

// SkipReason is why no test of the suite can run here, "" when they can.
func SkipReason() string { return os.Getenv(skipVar) }

// RunDir is the run's temporary directory, on the machine's own disk.
func RunDir() string { return os.Getenv(dirVar) }

// Cgroup is the control group below which all containers of the run must be: it
// is removed in the end.
func Cgroup() string { return cgroupRoot(RunDir()) }

// cgroupRoot is the control group below which all containers of a run are.
func cgroupRoot(dir string) string { return "/" + filepath.Base(dir) }

// RemoveCgroups removes a control group and those below it from every
// hierarchy. Their processes are dead; the kernel may need a moment to know.
func RemoveCgroups(name string) error {
	var roots []string
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		found, _ := filepath.Glob(pattern + name) // The pattern is well formed.
		roots = append(roots, found...)
	}
	deadline := time.Now().Add(10 * time.Second)
	for _, root := range roots {
		for {
			err := removeTree(root)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("remove the run's control group: %w", err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// removeTree removes directories from the leaves up, leaving files to the kernel.
func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := os.Remove(dirs[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// setUpNetwork brings the loopback device of a network of the run's own up, with
// its addresses.
func (g Ground) setUpNetwork() error {
	if g.Network == nil {
		return nil
	}
	// Aliases have names of their own.
	for i, addr := range append([]netip.Addr{netip.MustParseAddr("127.0.0.1")}, g.Network...) {
		name := "lo"
		if i > 0 {
			name = fmt.Sprintf("lo:%d", i)
		}
		if err := setUpDevice(name, addr); err != nil {
			return fmt.Errorf("give the address %s to the run's network: %w", addr, err)
		}
	}
	return nil
}

// setUpDevice gives a network device an IPv4 address and brings it up. See
// netdevice(7).
func setUpDevice(name string, addr netip.Addr) error {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	request, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	if err := request.SetInet4Addr(addr.AsSlice()); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFADDR, request); err != nil {
		return err
	}
	if err := unix.IoctlIfreq(socket, unix.SIOCGIFFLAGS, request); err != nil {
		return err
	}
	request.SetUint16(request.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request)
}

// runInit is the first process of the namespaces: it sets the mounts up, starts
// the tests, buries the orphans that shims leave, and ends with the tests.
func (g Ground) runInit() int {
	status, err := g.initNamespaces()
	if err != nil {
		fmt.Fprintf(os.Stderr, "end-to-end suite: %v\n", err)
		return exitFailed
	}
	return status
}

func (g Ground) initNamespaces() (int, error) {
	// The host's mounts stay the host's business from here on. Shared again,
	// because the kubelet and runc expect a node's root to be.
	for _, flag := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|flag, ""); err != nil {
			return 0, fmt.Errorf("make the mounts private: %w", err)
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return 0, fmt.Errorf("mount /proc: %w", err)
	}
	dir := os.Getenv(dirVar)
	for _, d := range g.Dirs {
		if err := unix.Mount(d.own(dir), d.Path, "", unix.MS_BIND, ""); err != nil {
			return 0, fmt.Errorf("mount over %s: %w", d.Path, err)
		}
	}
	if err := g.setUpNetwork(); err != nil {
		return 0, err
	}
	exe, err := os.Executable()
	if err != nil {
		return 0, err
	}
	if err := os.Setenv(roleVar, roleTests); err != nil {
		return 0, err
	}
	tests, err := os.StartProcess(exe, os.Args, &os.ProcAttr{
		Env:   os.Environ(),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return 0, fmt.Errorf("start the tests: %w", err)
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for the tests: %w", err)
		case pid == tests.Pid && status.Exited():
			return status.ExitStatus(), nil
		case pid == tests.Pid:
			return 0, fmt.Errorf("the tests were ended by signal %v", status.Signal())
		}
	}
}
