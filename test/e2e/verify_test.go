//go:build e2e && linux

package e2e

import (
	"io/fs"
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
		command := s.DxctlCommand("verify", append([]string{"--cri-socket", "unix://" + s.Address(), "--containerd-namespace", bed.DefaultNamespace}, flags...)...)
		command.Env = append(command.Env, "CONTAINERD_SNAPSHOTTER=native")
		return command
	}
	for _, runtime := range []string{bed.DirectX, bed.Runc} {
		status, stdout, stderr := call(t, verify("--runtime", runtime))
		if status != 0 {
			t.Fatalf("with %s, exit status %d\n%s%s", runtime, status, stdout, stderr)
		}
		bed.MustContain(t, "what dxctl prints", stdout, "starts   without a GPU\n", "refused  with the interlock",
			allocation.InterlockMount, "starts   with GPUs and 0 of 8 driver files\n", "starts   with GPUs and 8 of 8 driver files\n", "starts   as configured\n")
		report := string(bed.ReadFile(t, filepath.Join(s.StateDir, paths.VerifyFile)))
		bed.MustContain(t, "the report", report, "image dx.test/pause:3, runtime "+runtime, stdout)
	}

	t.Run("a command", func(t *testing.T) {
		if status, stdout, stderr := call(t, verify("--runtime", bed.DirectX, "--image", bed.Image, "--", "/bin/true")); status != 0 {
			t.Errorf("exit status %d\n%s%s", status, stdout, stderr)
		}
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
