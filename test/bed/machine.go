//go:build e2e && linux

package bed

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"directx-nri/internal/containerdconfig"
)

// The versions of containerd that the suites run.
const (
	Containerd1 = "1.7"
	Containerd2 = "2.x"
)

// Containerds returns the directories of the programs of each containerd by
// version. It skips the test when one of them is missing.
func Containerds(t testing.TB) map[string]string {
	t.Helper()
	programs := []string{"containerd", "ctr", "containerd-shim-runc-v2"}
	return map[string]string{
		Containerd1: PartsDir(t, "bin", programs...),
		Containerd2: PartsDir(t, "containerd2", programs...),
	}
}

// Machine is a containerd whose files are all in one directory, started and
// stopped by a script as an init system would. It is for tests of what changes
// containerd's configuration, restarts it, or replaces its shims.
type Machine struct {
	*testing.T
	// Dir is the directory, Parts that of containerd's programs.
	Dir, Parts string
}

// MachineOptions describe a machine.
type MachineOptions struct {
	// Parts is the directory of containerd's programs.
	Parts string
	// Config is containerd's configuration, in which DIR stands for the machine's
	// directory; empty for no file.
	Config string
	// Isolated gives each run of containerd its own /run, /opt and /etc/containerd.
	// Its containers do not survive a restart then.
	Isolated bool
	// Kept makes the script start containerd whenever it has ended.
	Kept bool
}

// script starts and stops containerd, or keeps it running. It refuses to start it
// while the configuration has the text of the file "refuse", and counts the starts
// in the file "starts".
const script = `#!/bin/sh
cd "$(dirname "$0")" || exit 1
run() {
	if [ -s refuse ] && grep -q -f refuse config.toml; then
		echo "this configuration is refused" | tee -a log >&2
		return 1
	fi
	echo start >>starts
	config=
	[ ! -e config.toml ] || config="--config $PWD/config.toml"
	PATH="$PWD/bin:PARTS:$PATH" DIRECTX_NRI_STATE_DIR="$PWD/ours" setsid WRAPPER PARTS/containerd $config \
		--root "$PWD/root" --state "$PWD/state" --address "$PWD/s" >>log 2>&1 </dev/null &
	echo $! >pid
}
if [ "$1" = keep ]; then
	while kill -0 "$(cat pid 2>/dev/null)" 2>/dev/null; do sleep 0.05; done
	while [ ! -e stop ]; do
		sleep 0.1
		run && wait $!
	done
	exit
fi
if [ -s pid ]; then
	kill "$(cat pid)" 2>/dev/null
	while kill -0 "$(cat pid)" 2>/dev/null; do sleep 0.05; done
	: >pid
fi
[ "$1" = stop ] || run
`

// isolate runs a program with empty directories in place of the machine's.
const isolate = `#!/bin/sh
for dir in /run /opt /etc/containerd; do
	[ ! -d $dir ] || mount -t tmpfs none $dir || exit 1
done
exec "$@"
`

// NewMachine starts a machine and stops it when the test ends.
func NewMachine(t *testing.T, options MachineOptions) *Machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "m") // Paths of sockets are short.
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &Machine{T: t, Dir: dir, Parts: options.Parts}
	wrapper := ""
	if options.Isolated {
		m.Write("isolate", isolate, 0o755)
		wrapper = "unshare --mount $PWD/isolate"
	}
	m.Write("service", strings.NewReplacer("PARTS", options.Parts, "WRAPPER", wrapper).Replace(script), 0o755)
	if options.Config != "" {
		m.Write("config.toml", m.Text(options.Config), 0o640)
	}
	t.Cleanup(func() {
		m.Write("stop", "", 0o644)
		m.Service("stop")
		if t.Failed() {
			log := m.ContainerdLog()
			t.Logf("containerd:\n%s", log[max(0, len(log)-5000):])
		}
	})
	if options.Kept {
		m.Keep()
	} else {
		m.Service("start")
	}
	m.Loaded()
	return m
}

// Keep starts containerd, and again whenever it has ended, until the test ends.
func (m *Machine) Keep() {
	m.Helper()
	keeper := exec.Command(m.Path("service"), "keep")
	if err := keeper.Start(); err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() {
		m.Write("stop", "", 0o644)
		m.Service("stop")
		_ = keeper.Wait()
	})
}

// Service runs the script that starts or stops containerd.
func (m *Machine) Service(action string) {
	m.Helper()
	if out, err := exec.Command(m.Path("service"), action).CombinedOutput(); err != nil {
		m.Errorf("%s containerd: %v: %s", action, err, out)
	}
}

// RestartFlags are the flags of dxctl by which it restarts containerd.
func (m *Machine) RestartFlags() []string {
	return []string{"--restart", "--restart-command", m.Path("service") + " start", "--restart-timeout", "30s"}
}

// Path returns the path of a file of the machine.
func (m *Machine) Path(name string) string { return filepath.Join(m.Dir, name) }

// Socket is containerd's socket.
func (m *Machine) Socket() string { return m.Path("s") }

// Text replaces DIR in a text by the machine's directory.
func (m *Machine) Text(text string) string { return strings.ReplaceAll(text, "DIR", m.Dir) }

// Write writes a file. No process that another test starts meanwhile inherits it
// open for writing, so a program can be run at once.
func (m *Machine) Write(name, text string, perm os.FileMode) {
	m.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	path := m.Path(name)
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), perm), os.Chmod(path, perm))
	if err != nil {
		m.Fatal(err)
	}
}

// Read returns the content of a file, "" when there is none.
func (m *Machine) Read(name string) string {
	m.Helper()
	data, err := os.ReadFile(m.Path(name))
	if err != nil && !os.IsNotExist(err) {
		m.Fatal(err)
	}
	return string(data)
}

// ContainerdLog returns what containerd has logged.
func (m *Machine) ContainerdLog() string { return m.Read("log") }

// PID returns the ID of the process that the script started.
func (m *Machine) PID() int {
	m.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(m.Read("pid")))
	if err != nil || pid < 2 {
		m.Fatalf("the process ID of containerd: %d, %v", pid, err)
	}
	return pid
}

// Call runs a command and returns its exit status and output.
func (m *Machine) Call(command *exec.Cmd) (status int, stdout, stderr string) {
	m.Helper()
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	if exit := (&exec.ExitError{}); err != nil && !errors.As(err, &exit) {
		m.Fatal(err)
	}
	return command.ProcessState.ExitCode(), out.String(), errs.String()
}

// Must runs a program that must succeed and returns its output.
func (m *Machine) Must(program string, args ...string) string {
	m.Helper()
	status, stdout, stderr := m.Call(exec.Command(program, args...))
	if status != 0 {
		m.Fatalf("%s %v: status %d: %s%s", filepath.Base(program), args, status, stdout, stderr)
	}
	return stdout + stderr
}

// Loaded waits for containerd and returns the runtime handlers that it has loaded.
func (m *Machine) Loaded() (loaded containerdconfig.Loaded) {
	m.Helper()
	connection, err := containerdconfig.Dial(m.Socket())
	if err != nil {
		m.Fatal(err)
	}
	defer connection.Close()
	Eventually(m, 30*time.Second, "containerd answers", func() (err error) {
		loaded, err = containerdconfig.Load(m.Context(), connection)
		return err
	})
	return loaded
}

// Handlers returns the runtime handlers that containerd has loaded by name.
func (m *Machine) Handlers() map[string]containerdconfig.Handler {
	m.Helper()
	byName := map[string]containerdconfig.Handler{}
	for _, h := range m.Loaded().Handlers {
		byName[h.Name] = h
	}
	return byName
}

// CopyProgram copies a program to the machine.
func (m *Machine) CopyProgram(from, name string) {
	m.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		m.Fatal(err)
	}
	m.Write(name, string(data), 0o755)
}
