//go:build e2e && linux

package bed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// dirVar is the environment variable with the run's temporary directory, which the test
// binary sets for itself.
const dirVar = "DIRECTX_NRI_E2E_DIR"

// Suite states what a suite requires of the machine, and what it replaces.
type Suite struct {
	// Dirs are directories whose paths the real parts fix. The run mounts its own over
	// each of them, in a mount namespace.
	Dirs []Dir
	// Check returns why the suite cannot run here, and the remedy.
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

// NodeSuite is the suite of a node of this package.
func NodeSuite() Suite {
	return Suite{
		Dirs: []Dir{
			{Path: kubeletRoot},       // its device plugin directory cannot be moved
			{Path: "/run/containerd"}, // shim sockets and runc's state
			{Path: "/run/cdi"},        // where all runtimes look
		},
		Check: Parts.check,
	}
}

// Main runs the tests of m and returns the exit status. The test binary runs
// as two processes: the outer one checks the requirements and cleans up, its child
// runs the tests in mount, PID and network namespaces.
func (s Suite) Main(m *testing.M) int {
	if os.Getenv(dirVar) != "" {
		return max(m.Run(), checkLeftovers())
	}
	err := s.preflight()
	status := 1
	if err == nil {
		status, err = s.supervise()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "end-to-end suite: %v\n", err)
		status = max(status, 1)
	}
	return status
}

// checkLeftovers prints the processes that the tests have left in the namespace, at whose end
// the kernel kills them, and returns the exit status: 1 if there are any after 10 seconds.
func checkLeftovers() int {
	for start := time.Now(); ; time.Sleep(pollInterval) {
		left := leftovers()
		if len(left) == 0 {
			return 0
		}
		if time.Since(start) > 10*time.Second {
			fmt.Fprintf(os.Stderr, "end-to-end suite: the tests have left processes behind:\n%s\n", strings.Join(left, "\n"))
			return 1
		}
	}
}

// sandbox matches the processes of a pod without containers. The kubelet reports the pod's end
// before that of its sandbox, which stays if the test ends containerd then.
var sandbox = regexp.MustCompile(`^(\S*/containerd-shim-runc-v2 -namespace ` + PodNamespace + ` .*|/bin/sleep 2147483647 )$`)

// leftovers returns the command lines of the namespace's processes, except for its first, this
// one and those of sandboxes.
func leftovers() (commands []string) {
	for pid, command := range processes() {
		if command != "" && pid != 1 && pid != os.Getpid() && !sandbox.MatchString(command) {
			commands = append(commands, command)
		}
	}
	return commands
}

// processes returns the command lines of all processes, in which spaces separate the arguments.
func processes() map[int]string {
	found := map[int]string{}
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // The pattern is well formed.
	for _, file := range files {
		var pid int
		_, _ = fmt.Sscanf(file, "/proc/%d/cmdline", &pid)
		data, _ := os.ReadFile(file) // It may have ended.
		found[pid] = strings.ReplaceAll(string(data), "\x00", " ")
	}
	return found
}

// FindProcess returns the ID of a process of a program with these arguments among others, 0 if there is none.
func FindProcess(name, arguments string) (pid int) {
	for id, command := range processes() {
		program, rest, _ := strings.Cut(command, " ")
		if strings.HasPrefix(filepath.Base(program), name) && strings.Contains(" "+rest, arguments) {
			pid = id
		}
	}
	return pid
}

// StopPods ends the pods of a container runtime with these labels. They would outlive it.
func StopPods(runtime cri.RuntimeServiceClient, labels map[string]string) error {
	ctx := context.Background()
	sandboxes, err := runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: labels}})
	for _, s := range sandboxes.GetItems() {
		_, stopErr := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: s.GetId()})
		err = errors.Join(err, stopErr)
	}
	return err
}

// preflight returns why the suite cannot run on this machine, and the remedy.
func (s Suite) preflight() error {
	if os.Geteuid() != 0 {
		return errors.New("it needs root for containers: run it with sudo")
	}
	parts, err := FindParts()
	if err != nil {
		return err
	}
	return s.Check(parts)
}

// tunables are the kernel settings that a kubelet changes for the whole
// machine when it starts. The run mounts a copy over each.
var tunables = []string{
	"/proc/sys/vm/overcommit_memory",
	"/proc/sys/vm/panic_on_oom",
	"/proc/sys/kernel/panic",
	"/proc/sys/kernel/panic_on_oops",
	"/proc/sys/kernel/keys/root_maxkeys",
	"/proc/sys/kernel/keys/root_maxbytes",
}

// supervise runs the tests in namespaces and removes what the run left outside of
// them, apart from empty directories. It returns the tests' exit status.
func (s Suite) supervise() (status int, err error) {
	dir, err := os.MkdirTemp(os.Getenv("DIRECTX_NRI_E2E_TMP"), "dx")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	// Sockets lie below dir, and their paths hold 107 bytes at most.
	if len(dir) > 40 {
		return 1, fmt.Errorf("the temporary directory's path %s is too long for the sockets in it: set DIRECTX_NRI_E2E_TMP=/tmp", dir)
	}
	defer func() { err = errors.Join(err, RemoveCgroups(cgroupRoot(dir))) }()

	for _, d := range s.Dirs {
		if d.Copy {
			err = exec.Command("cp", "--archive", d.Path, d.own(dir)).Run()
		} else {
			err = os.Mkdir(d.own(dir), 0o755)
		}
		if err != nil {
			return 1, fmt.Errorf("make the directory for %s: %w", d.Path, err)
		}
		// It stays when the run has ended: removing a directory detaches what is mounted
		// on it in other namespaces, such as those of another run.
		if err := os.MkdirAll(d.Path, 0o755); err != nil {
			return 1, err
		}
	}
	return s.runNamespaced(dir)
}

// runNamespaced runs this program again in new namespaces and waits for it. Every
// process of the namespaces ends with it, or with a signal to this process. The
// namespaces' first process is a shell, which reaps the orphans that shims leave.
func (s Suite) runNamespaced(dir string) (int, error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	defer cancel()
	exe, err := os.Executable()
	if err != nil {
		return 1, err
	}
	// The kubelet and runc expect the mounts of a node's root to be shared.
	script := "set -e; mount --make-rshared /\n"
	for _, d := range s.Dirs {
		script += fmt.Sprintf("mount --bind '%s' '%s'\n", d.own(dir), d.Path)
	}
	for i, path := range tunables { // Not every kernel has all.
		script += fmt.Sprintf("if [ -e %[1]s ]; then cat %[1]s >'%[2]s/tunable%[3]d'; mount --bind '%[2]s/tunable%[3]d' %[1]s; fi\n", path, dir, i)
	}
	args := []string{"--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc"}
	script += "busybox ifconfig lo 127.0.0.1 up\nbusybox ifconfig lo:1 " + NodeAddress + " up\n"
	// Processes that wait for a file system that a test has frozen cannot even be killed.
	unfreeze := fmt.Sprintf("for state in '%s'/n*/state; do fsfreeze --unfreeze \"$state\" 2>/dev/null || :; done\n", dir)
	script += `status=0; "$0" "$@" || status=$?; ` + unfreeze + "exit $status"
	cmd := exec.CommandContext(ctx, "unshare", append(append(args, "sh", "-c", script, exe), os.Args[1:]...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), dirVar+"="+dir, "TMPDIR="+dir)
	cmd.Cancel = func() error {
		kill := fmt.Sprintf("kill -KILL %d; ", cmd.Process.Pid)
		_ = exec.Command("nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", cmd.Process.Pid), "sh", "-c", kill+unfreeze).Run()
		return cmd.Process.Kill() // It may have ended.
	}
	// The signal is sent when the thread that started the process ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), nil
	} else if err != nil {
		return 1, fmt.Errorf("run the tests: %w", err)
	}
	return 0, nil
}

// RunDir is the run's temporary directory, on the machine's own disk.
func RunDir() string { return os.Getenv(dirVar) }

// Cgroup is the control group below which all containers of the run must be: it
// is removed in the end.
func Cgroup() string { return cgroupRoot(RunDir()) }

func cgroupRoot(dir string) string { return "/" + filepath.Base(dir) }

// RemoveCgroups removes a control group and those below it from every
// hierarchy. Processes that were killed may stay in them for a moment.
func RemoveCgroups(name string) error {
	roots, _ := filepath.Glob("/sys/fs/cgroup" + name) // The patterns are well formed.
	controllers, _ := filepath.Glob("/sys/fs/cgroup/*" + name)
	for _, root := range append(roots, controllers...) {
		for start := time.Now(); ; time.Sleep(50 * time.Millisecond) {
			out, err := exec.Command("find", root, "-type", "d", "-delete").CombinedOutput()
			if err == nil {
				break
			}
			if time.Since(start) > 10*time.Second {
				return fmt.Errorf("remove control group %s: %w: %s", root, err, out)
			}
		}
	}
	return nil
}
