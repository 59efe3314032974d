//go:build unix

package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/directx-nri/directx-nri/cmd/dxctl/noderuntime"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/containerdtest"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// 'dxctl capabilities' prints whether the shim is used, and why what it reports is unknown.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change      func(*containerdtest.FakeNode) error
		args        []string
		err, output string
	}{
		"flags that cannot be used":  {args: []string{"--containerd-major=3"}, err: "--containerd-major 3"},
		"an output that is none":     {args: []string{"-o", "xml"}, err: "want one of yaml, json"},
		"configured, but not loaded": {output: "loaded: false"},
		"a shim that is not run": {change: func(n *containerdtest.FakeNode) error {
			return shimfile.RecordBypass(n.State, "the real shim /opt/real answers with bootstrap version 3")
		}, output: "the real shim /opt/real answers with bootstrap version 3"},
		"a broken file": {change: func(n *containerdtest.FakeNode) error {
			return os.WriteFile(n.Config, []byte("= 1"), 0o600)
		}, output: "config.toml:1:1: "},
		"no containerd": {change: func(n *containerdtest.FakeNode) error {
			n.Socket = filepath.Join(n.Root, "none")
			return nil
		}, output: "no such file or directory"},
	} {
		n := containerdtest.New(t, containerdtest.Config)
		_, _, err := containerdtest.Run(t, noderuntime.NewConfigureCommand(), append(n.Flags(), "--shim-dir", n.Root)...)
		testutil.NoError(t, err)
		if test.change != nil {
			testutil.NoError(t, test.change(n))
		}
		stdout, _, err := containerdtest.Run(t, NewCapabilitiesCommand("1.0"), append(n.Flags(), test.args...)...)
		testutil.CheckError(t, name, err, test.err)
		if !strings.Contains(stdout, test.output) {
			t.Errorf("%s: no %q in\n%s", name, test.output, stdout)
		}
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
		testutil.NoError(t, os.Mkdir(state, 0o700), syscall.Mkfifo(pipe, 0o600))
		args := append(emptyNode(dir), "--state-dir", state, "--timeout", "300ms")
		out, err := runCLI(t, NewCommand("1.0"), args...)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%v\n%s", err, out)
		}
		writer, err := os.OpenFile(pipe, os.O_WRONLY, 0) // The query in the background ends.
		testutil.NoError(t, err)
		testutil.NoError(t, writer.Close())
	}
}

// In a container, the node's files are below the mount point of its root directory.
func TestDoctorInAContainer(t *testing.T) {
	t.Parallel()
	dir, mounted := t.TempDir(), t.TempDir()
	state, file, inventory := filepath.Join(dir, "state"), filepath.Join(dir, "config.yaml"), filepath.Join(dir, "gpus.yaml")
	testutil.WriteFile(t, filepath.Join(mounted, "tools", "file"), "", 0o600)
	testutil.WriteFile(t, file, configHead+"inventory: "+inventory+"\nextraMounts: {sources: host-directories, hostDirectories: [/tools], destinations: [/tools]}\n", 0o600)
	testutil.WriteFile(t, inventory,
		"apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\n"+
			"devices: [{instanceID: A, driver: {version: '1'}, display: true, linux: {deviceNodes: [/dev/null]}}]\n", 0o600)
	apply(t, file, state)
	const device, tools = "problem devices: A", "problem permissions: /tools"
	for hostRoot, want := range map[string][2]bool{"/": {false, true}, mounted: {true, false}} {
		out, err := runCLI(t, NewCommand("1.0"), append(emptyNode(dir), "--state-dir", state, "--host-root", hostRoot)...)
		if got := [2]bool{strings.Contains(out, device), strings.Contains(out, tools)}; err == nil || got != want {
			t.Errorf("%s: %v\n%s", hostRoot, err, out)
		}
	}
}

// Each open directory or file that decides what containers get is a problem. The kubelet accepts
// plugins from everyone who can write its directory.
func TestAccess(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		dir, file os.FileMode
		want      error
		problems  int
	}{
		"private":             {0o755, 0o644, nil, 0},
		"a directory is open": {0o777, 0o644, access.ErrNotPrivate, 3},
		"a file is open":      {0o755, 0o666, access.ErrUntrusted, 2},
	} {
		c := configState{Path: filepath.Join(t.TempDir(), "config.yaml")}
		c.Policy.CompiledFrom.Inventory = filepath.Join(t.TempDir(), "gpus.yaml")
		n := gatherer{stateDir: "/nonexistent", kubeletDir: filepath.Dir(c.Path)}
		for _, path := range []string{c.Path, c.Policy.CompiledFrom.Inventory} {
			testutil.NoError(t, os.WriteFile(path, nil, 0o600), os.Chmod(path, test.file), os.Chmod(filepath.Dir(path), test.dir))
		}
		problems := n.checkFiles(t.Context(), c)
		if len(problems) != test.problems {
			t.Errorf("%s: %v, want %d problems", name, problems, test.problems)
		}
		for _, p := range problems {
			if p.kind != writableByOthers || !errors.Is(p.err, test.want) {
				t.Errorf("%s: %v, want %v", name, p, test.want)
			}
		}
	}
}

// Users who can write a directory on the way could replace the shim, which dxctl runs as root.
func TestShimThatOthersCanReplace(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), shimfile.FileName())
	testutil.WriteFile(t, path, "#!/bin/sh\necho "+shimfile.BaseName+" 1.0\n", 0o755)
	testutil.NoError(t, os.Chmod(filepath.Dir(path), 0o777))
	if version, err := (&gatherer{timeout: testutil.Timeout}).readShimVersion(t.Context(), path); !errors.Is(err, access.ErrUntrusted) {
		t.Errorf("%q, %v", version, err)
	}
}

func TestDoctorOfDamagedFiles(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"runtime-configure.json": "problem leftovers: ", filepath.Join("allocations", strings.Repeat("ab", 16)+".json"): "problem records: ",
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "state", file)
		testutil.WriteFile(t, path, "{", 0o600)
		out, err := runCLI(t, NewCommand("1.0"), append(emptyNode(dir), "--state-dir", filepath.Join(dir, "state"))...)
		if err == nil || !strings.Contains(out, want+path) {
			t.Errorf("%v\n%s", err, out)
		}
	}
}
