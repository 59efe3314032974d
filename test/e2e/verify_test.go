//go:build e2e && linux

package e2e

import (
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// TestVerify runs 'dxctl verify' with containerd's own client.
func TestVerify(t *testing.T) {
	s := start(t, bed.Options{NoKubelet: true, Shim: true, SameDevicePaths: true, Inventory: bed.NewInventory(2, 1)})
	if out, err := s.Ctr("images", "tag", bed.Image, "dx.test/pause:3"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	before := s.leftovers(t)
	verify := func(flags ...string) *exec.Cmd {
		return s.DxctlCommand("verify", append([]string{"--cri-socket", "unix://" + s.Address(), "--containerd-namespace", bed.DefaultNamespace, "--snapshotter", "native"}, flags...)...)
	}
	for _, runtime := range []string{bed.DirectX, bed.Runc} {
		status, stdout, stderr := call(t, verify("--runtime", runtime))
		if status != 0 {
			t.Fatalf("with %s, exit status %d\n%s%s", runtime, status, stdout, stderr)
		}
		bed.MustContain(t, "what dxctl prints", stdout, "starts   without a GPU\n", "refused  with the interlock",
			allocation.InterlockMount, "starts   with GPUs and 0 of 8 driver files\n", "starts   with GPUs and 8 of 8 driver files\n", "starts   as configured\n")
		file := filepath.Join(s.StateDir, "verify.json")
		var result struct {
			Image, Runtime string
			Works          bool
			Containers     []any
		}
		testutil.NoError(t, json.Unmarshal(bed.ReadFile(t, file), &result))
		if !result.Works || result.Image != "dx.test/pause:3" || result.Runtime != runtime || len(result.Containers) != 5 {
			t.Errorf("%s has %+v", file, result)
		}
	}

	t.Run("a GPU that is allocated", func(t *testing.T) {
		recorder, err := allocation.OpenRecorder(t.Context(), paths.Allocations(s.StateDir), testutil.Quiet())
		testutil.NoError(t, err)
		t.Cleanup(func() { _ = recorder.Close() })
		gpu := s.Inventory.GPUs[0].InstanceID()
		_, err = recorder.Record(t.Context(), allocation.Record{Resource: bed.Display, Replicas: []allocation.Replica{{ID: gpu + "-0", InstanceID: gpu}}})
		testutil.NoError(t, err)
		if status, stdout, stderr := call(t, verify()); status != 1 || stdout != "" || !strings.Contains(stderr, "--force") {
			t.Errorf("exit status %d\n%s%s", status, stdout, stderr)
		}
		if status, stdout, stderr := call(t, verify("--force", "--runtime", bed.DirectX, "--image", bed.Image, "--", "/bin/true")); status != 0 {
			t.Errorf("exit status %d\n%s%s", status, stdout, stderr)
		}
		testutil.NoError(t, os.RemoveAll(paths.Allocations(s.StateDir)))
	})

	t.Run("the node starts no container", func(t *testing.T) {
		status, stdout, stderr := call(t, verify("--runtime", "io.containerd.no-such.v1"))
		if status != 3 || !strings.Contains(stderr, "GPUs cannot be tested") || !strings.Contains(stderr, "no-such") {
			t.Errorf("exit status %d\n%s%s", status, stdout, stderr)
		}
	})

	for delay := range 6 {
		command := verify("--runtime", bed.DirectX)
		command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		stdout, err := command.StdoutPipe()
		testutil.NoError(t, err)
		testutil.NoError(t, command.Start())
		_, _ = stdout.Read(make([]byte, 1))
		time.Sleep(time.Duration(delay) * 40 * time.Millisecond)
		testutil.NoError(t, syscall.Kill(-command.Process.Pid, syscall.SIGINT)) // as Ctrl-C does
		_ = command.Wait()
		if status := command.ProcessState.ExitCode(); status != 3 {
			t.Errorf("interrupted, exit status %d, want 3", status)
		}
	}
	if after := s.leftovers(t); !slices.Equal(before, after) {
		t.Errorf("containers, snapshots and control groups were %q and are %q", before, after)
	}
}

// leftovers returns what containers leave behind.
func (s *suite) leftovers(t *testing.T) (all []string) {
	t.Helper()
	for _, list := range [][]string{{"containers", "list", "-q"}, {"tasks", "list", "-q"}, {"snapshots", "--snapshotter", "native", "list"}} {
		out, err := s.Ctr(list...)
		testutil.NoError(t, err)
		all = append(all, out)
	}
	// Other programs' groups disappear during the walk: their errors say nothing about ours.
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, _ fs.DirEntry, _ error) error {
		if strings.HasPrefix(filepath.Base(path), "dxctl-verify-") {
			all = append(all, path)
		}
		return nil
	})
	return all
}
