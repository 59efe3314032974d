//go:build unix

package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd"
	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd/containerdtest"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/shimfile"
)

// configure configures a node's containerd, which has not loaded it then.
func configure(t *testing.T, n *containerdtest.Node) {
	t.Helper()
	if _, _, err := containerdtest.Run(t, containerd.NewConfigureCommand("linux"), append(n.Flags(), "--shim-dir", n.ShimDir)...); err != nil {
		t.Fatal(err)
	}
}

// runStatus runs 'dxctl runtime status'.
func runStatus(t *testing.T, n *containerdtest.Node, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return containerdtest.Run(t, NewStatusCommand("linux", "1.0"), append(n.Flags(), args...)...)
}

func TestStatusOfANodeThatIsNotServed(t *testing.T) {
	t.Parallel()
	n := containerdtest.New(t, containerdtest.Config)
	if err := shimfile.WriteNotServed(n.State, "the real shim /opt/real answers with bootstrap version 3"); err != nil {
		t.Fatal(err)
	}
	if stdout, _, err := runStatus(t, n); err == nil || !strings.Contains(stdout, "the real shim /opt/real answers with bootstrap version 3") {
		t.Errorf("%v\n%s", err, stdout)
	}
}

func TestStatusRefusals(t *testing.T) {
	t.Parallel()
	n := containerdtest.New(t, containerdtest.Config)
	for want, args := range map[string][]string{
		"--containerd-major 3":             {"--containerd-major=3"},
		"want yaml or json":                {"-o", "xml"},
		"no runtime handler uses our shim": nil,
	} {
		if _, _, err := runStatus(t, n, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", args, err, want)
		}
	}
}

// A status that is unknown is an error, and the output has the cause.
func TestStatusIsUnknown(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(b *containerdtest.Node){
		"config.toml:1:1: ":         func(b *containerdtest.Node) { b.Write(t, b.Config, "= 1") },
		"no such file or directory": func(b *containerdtest.Node) { b.Socket = filepath.Join(b.Root, "none") },
	} {
		b := containerdtest.New(t, containerdtest.Config)
		configure(t, b)
		change(b)
		stdout, _, err := runStatus(t, b)
		if err == nil || !strings.Contains(err.Error(), "dxctl doctor") || !strings.Contains(stdout, want) {
			t.Errorf("error %v, want %q in\n%s", err, want, stdout)
		}
	}
}

// The kubelet accepts plugins from everyone who can write its directory.
func TestDoctorChecksTheKubeletsDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "kubelet"), 0o700), os.Chmod(filepath.Join(dir, "kubelet"), 0o777)); err != nil {
		t.Fatal(err)
	}
	out, err := ask(t, NewCommand("1.0"), append(emptyNode(dir), "--state-dir", filepath.Join(dir, "state"))...)
	if err == nil || !strings.Contains(out, "problem permissions: "+filepath.Join(dir, "kubelet")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// A disk that hangs does not stop doctor, which reports it.
func TestDoctorOnADiskThatHangs(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		filepath.Base(policy.Path("")): "read node policy: no answer",
		"runtime-configure.json":       "check the files of directx-nri: no answer",
	} {
		dir := t.TempDir()
		state := filepath.Join(dir, "state")
		pipe := filepath.Join(state, name)
		if err := errors.Join(os.Mkdir(state, 0o700), syscall.Mkfifo(pipe, 0o600)); err != nil {
			t.Fatal(err)
		}
		args := append(emptyNode(dir), "--state-dir", state, "--timeout", "300ms")
		out, err := ask(t, NewCommand("1.0"), args...)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%v\n%s", err, out)
		}
		writer, err := os.OpenFile(pipe, os.O_WRONLY, 0) // The query in the background ends.
		if err != nil {
			t.Fatal(err)
		}
		if err := writer.Close(); err != nil {
			t.Error(err)
		}
	}
}

// In a container, the node's files are below the mount point of its root directory.
func TestDoctorInAContainer(t *testing.T) {
	t.Parallel()
	dir, mounted := t.TempDir(), t.TempDir()
	state, file, inventory := filepath.Join(dir, "state"), filepath.Join(dir, "config.yaml"), filepath.Join(dir, "gpus.yaml")
	err := errors.Join(os.Mkdir(state, 0o700), os.Mkdir(filepath.Join(mounted, "tools"), 0o700),
		os.WriteFile(file, []byte(configHead+"inventory: "+inventory+"\nextraMounts: {sources: host-directories, hostDirectories: [/tools], destinations: [/tools]}\n"), 0o600),
		os.WriteFile(inventory, []byte("apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: [{instanceID: A, driver: {version: '1'}, display: true, linux: {deviceNodes: [/dev/null]}}]\n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	apply(t, file, state)
	const device, tools = "problem devices: A", "problem permissions: /tools"
	for hostRoot, want := range map[string][2]bool{"/": {false, true}, mounted: {true, false}} {
		out, err := ask(t, NewCommand("1.0"), append(emptyNode(dir), "--state-dir", state, "--host-root", hostRoot)...)
		if got := [2]bool{strings.Contains(out, device), strings.Contains(out, tools)}; err == nil || got != want {
			t.Errorf("%s: %v\n%s", hostRoot, err, out)
		}
	}
}
