//go:build unix

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/grpctest"
	"github.com/directx-nri/directx-nri/shim/bypass"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// 'dxctl capabilities' prints what the node supports, and why what it reports is unknown.
func TestCapabilities(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	state := filepath.Join(dir, "state")
	testutil.NoError(t, bypass.Record(state, "the real shim answers with bootstrap version 3"))
	testutil.WriteFile(t, filepath.Join(dir, shimfile.FileName()), "#!/bin/sh\necho "+shimfile.BaseName+" 1.0\n", 0o700)
	socket := filepath.Join(testutil.ShortDir(t), "s")
	grpctest.Serve(t, socket, &runtime.RuntimeService_ServiceDesc, containerd{})
	args := []string{"capabilities", "--state-dir", state, "--shim-dir", dir, "--cri-socket", socket, "--nri-socket", filepath.Join(dir, "none")}
	out, err := runCLI(t, args...)
	for _, want := range []string{"bootstrap version 3", "version: v1.7.35", `runc: ""`, "kata: runtime handler kata has", "/none: connect: no such file"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("no %q, %v in\n%s", want, err, out)
		}
	}
	_, err = runCLI(t, "capabilities", "-o", "xml")
	testutil.CheckError(t, "an output that is none", err, "want one of yaml, json")
}

// containerd is a test double of containerd's CRI server.
type containerd struct {
	runtime.UnimplementedRuntimeServiceServer
}

func (containerd) Version(context.Context, *runtime.VersionRequest) (*runtime.VersionResponse, error) {
	return &runtime.VersionResponse{RuntimeVersion: "v1.7.35"}, nil
}

func (containerd) Status(context.Context, *runtime.StatusRequest) (*runtime.StatusResponse, error) {
	config := `{"containerd":{"runtimes":{"runc":{"runtimeType":"io.containerd.runc.v2"},"kata":{"runtimeType":"io.containerd.kata.v2"}}}}`
	return &runtime.StatusResponse{Info: map[string]string{"config": config}}, nil
}

// A disk that hangs does not stop doctor, which reports it.
func TestDoctorOnADiskThatHangs(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		filepath.Base(policy.Path("")): "read node policy: no answer",
	} {
		dir := t.TempDir()
		state := filepath.Join(dir, "state")
		pipe := filepath.Join(state, name)
		testutil.NoError(t, os.Mkdir(state, 0o700), syscall.Mkfifo(pipe, 0o600))
		args := append(doctor(dir), "--state-dir", state, "--timeout", "300ms")
		out, err := runCLI(t, args...)
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
		out, err := runCLI(t, append(doctor(dir), "--state-dir", state, "--host-root", hostRoot)...)
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
	if version, err := readShimVersion(t.Context(), path, testutil.Timeout); !errors.Is(err, access.ErrUntrusted) {
		t.Errorf("%q, %v", version, err)
	}
}

func TestDoctorOfDamagedFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "state", "allocations", strings.Repeat("ab", 16)+".json")
	testutil.WriteFile(t, path, "{", 0o600)
	out, err := runCLI(t, append(doctor(dir), "--state-dir", filepath.Join(dir, "state"))...)
	if err == nil || !strings.Contains(out, "problem records: "+path) {
		t.Errorf("%v\n%s", err, out)
	}
}
