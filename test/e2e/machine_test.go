//go:build e2e && linux

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/criclient"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/shim/shimfile"
	"github.com/directx-nri/directx-nri/test/bed"
)

// The versions of containerd.
const (
	containerd1 = "1.7"
	containerd2 = "2.x"
)

// machine is a containerd whose files are all in one directory, started and
// stopped by a script as an init system would. It is for tests of what changes
// containerd's configuration, restarts it, or replaces its shims.
type machine struct {
	*testing.T
	// dir is the directory, programs that of containerd's programs.
	dir, programs string
	parts         bed.Parts
}

// machineOptions describe a machine.
type machineOptions struct {
	// containerd is the version.
	containerd string
	// config is containerd's configuration, in which DIR stands for the machine's
	// directory; empty for no file.
	config string
	// isolated gives each run of containerd its own /run, /opt and /etc/containerd.
	// Its containers do not survive a restart then.
	isolated bool
	// kept makes the script start containerd whenever it has ended.
	kept bool
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

// newMachine starts a machine and stops it when the test ends.
func newMachine(t *testing.T, options machineOptions) *machine {
	t.Helper()
	parts, err := bed.FindParts()
	testutil.NoError(t, err)
	dir, err := os.MkdirTemp("", "m") // Paths of sockets are short.
	testutil.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &machine{T: t, dir: dir, parts: parts, programs: programs(parts, options.containerd)}
	wrapper := ""
	if options.isolated {
		m.write("isolate", isolate, 0o755)
		wrapper = "unshare --mount $PWD/isolate"
	}
	m.write("service", strings.NewReplacer("PARTS", m.programs, "WRAPPER", wrapper).Replace(script), 0o755)
	if options.config != "" {
		m.write("config.toml", m.text(options.config), 0o640)
	}
	keeper := exec.Command(m.path("service"), "keep")
	t.Cleanup(func() {
		m.write("stop", "", 0o644)
		m.service("stop")
		_ = keeper.Wait() // It may not have been started.
		if t.Failed() {
			log := m.containerdLog()
			t.Logf("containerd:\n%s", log[max(0, len(log)-5000):])
		}
	})
	if options.kept {
		testutil.NoError(m, keeper.Start())
	} else {
		m.service("start")
	}
	m.loaded()
	return m
}

// programs returns the directory of the programs of a version of containerd.
func programs(parts bed.Parts, version string) string {
	if version == containerd2 {
		return parts.Stock("../containerd2")
	}
	return parts.Stock("")
}

// service runs the script that starts or stops containerd.
func (m *machine) service(action string) {
	m.Helper()
	if out, err := exec.Command(m.path("service"), action).CombinedOutput(); err != nil {
		m.Errorf("%s containerd: %v: %s", action, err, out)
	}
}

// restartFlags are the flags of dxctl by which it restarts containerd.
func (m *machine) restartFlags() []string {
	return []string{"--restart", "--restart-command", m.path("service") + " start", "--restart-timeout", "30s"}
}

// path returns the path of a file of the machine.
func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

// socket is containerd's socket.
func (m *machine) socket() string { return m.path("s") }

// shim is where the runtime shim is installed.
func (m *machine) shim() string { return m.path("bin/" + shimfile.BaseName) }

// text replaces DIR in a text by the machine's directory.
func (m *machine) text(text string) string { return strings.ReplaceAll(text, "DIR", m.dir) }

// write writes a file.
func (m *machine) write(name, text string, perm os.FileMode) {
	m.Helper()
	bed.WriteFile(m, m.path(name), text, perm)
}

// read returns the content of a file, "" when there is none.
func (m *machine) read(name string) string {
	m.Helper()
	data, err := os.ReadFile(m.path(name))
	if err != nil && !os.IsNotExist(err) {
		m.Fatal(err)
	}
	return string(data)
}

// containerdLog returns what containerd has logged.
func (m *machine) containerdLog() string { return m.read("log") }

// pid returns the ID of the process that the script started.
func (m *machine) pid() int {
	m.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(m.read("pid")))
	testutil.NoError(m, err)
	return pid
}

// must runs a command that must succeed and returns its output.
func (m *machine) must(command *exec.Cmd) string {
	m.Helper()
	status, stdout, stderr := call(m, command)
	if status != 0 {
		m.Fatalf("%v: status %d: %s%s", command.Args, status, stdout, stderr)
	}
	return stdout + stderr
}

// dxctl returns a call of dxctl.
func (m *machine) dxctl(args ...string) *exec.Cmd {
	command := exec.Command(m.parts.Product("dxctl"), args...)
	command.Env = append(os.Environ(), "PATH="+m.programs+":"+os.Getenv("PATH"), "DIRECTX_SECRET=SECRET-variable")
	return command
}

// runtime returns a call of a command of 'dxctl runtime' with the machine's paths.
func (m *machine) runtime(command string, args ...string) *exec.Cmd {
	all := []string{"runtime", command}
	if command != "install" {
		all = append(all, "--containerd-config", m.path("config.toml"), "--cri-socket", m.socket())
	}
	all = append(all, "--state-dir", m.path("ours"))
	switch {
	case command == "install":
		all = append(all, "--shim-dir", m.path("bin"))
	case command == "configure" && !slices.Contains(args, "--no-shim"):
		all = append(all, "--shim-dir", filepath.Dir(m.shim()))
	}
	return m.dxctl(append(all, args...)...)
}

// mustRestart runs a command of 'dxctl runtime' that restarts containerd.
func (m *machine) mustRestart(command string, args ...string) string {
	m.Helper()
	return m.must(m.runtime(command, append(args, m.restartFlags()...)...))
}

// loaded waits for containerd and returns the runtime handlers that it has loaded.
func (m *machine) loaded() (loaded criclient.RunningConfig) {
	m.Helper()
	bed.Eventually(m, 30*time.Second, "containerd answers", func() (err error) {
		loaded, err = criclient.ReadRunning(m.Context(), m.socket())
		return err
	})
	return loaded
}

// handlers returns the runtime handlers that containerd has loaded by name.
func (m *machine) handlers() map[string]containerdconfig.Handler {
	m.Helper()
	byName := map[string]containerdconfig.Handler{}
	for _, h := range m.loaded().Handlers {
		byName[h.Name] = h
	}
	return byName
}
