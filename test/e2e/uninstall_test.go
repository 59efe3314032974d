//go:build e2e && linux

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

// uninstall returns a call of 'dxctl runtime uninstall' that is not started yet.
func (s *suite) uninstall(flags ...string) *exec.Cmd {
	return s.DxctlCommand("runtime", append([]string{
		"uninstall", "--containerd-config", s.ContainerdConfig(), "--cri-socket", s.Address(), "--containerd-state", s.ContainerdState(),
		"--shim-dir", filepath.Dir(s.ShimFile()), "--runtime-dir", s.RuntimeDir,
	}, flags...)...)
}

// mustNotUninstall fails the test unless an uninstallation is refused with an error that has
// these parts.
func (s *suite) mustNotUninstall(t *testing.T, parts ...string) {
	t.Helper()
	status, _, stderr := call(t, s.uninstall())
	if _, err := os.Stat(s.ShimFile()); status != 1 || err != nil {
		t.Errorf("uninstall: status %d, %v", status, err)
	}
	bed.MustContain(t, "the error of uninstall", stderr, parts...)
}

// TestUninstallUnderContainers removes the shim under a container that it started, in the
// documented order. The test plays the supervisor that starts containerd again.
func TestUninstallUnderContainers(t *testing.T) {
	parts, err := bed.FindParts()
	testutil.NoError(t, err)
	for _, version := range []string{containerd1, containerd2} {
		t.Run(version, func(t *testing.T) {
			// Another user may own the parts, whose shim could not be configured.
			realShim := filepath.Join(t.TempDir(), "containerd-shim-runc-v2")
			bed.WriteFile(t, realShim, string(bed.ReadFile(t, filepath.Join(programs(parts, version), filepath.Base(realShim)))), 0o755)
			s := start(t, bed.Options{
				NoKubelet: true, Shim: true, Containerd2: version == containerd2, Inventory: bed.NewInventory(1, 0),
				Config: "shim: {realShim: " + realShim + "}\n",
			})
			unconfigured := string(bed.ReadFile(t, s.ContainerdConfig()))
			s.ConfigureContainerd(t)
			s.run(t, "one", annotation("all")...)
			s.CtrDetach(t, "plain", "--runtime", bed.Runc)
			before := []int{s.mustHave(t, "one", 0).PID, s.mustHave(t, "plain").PID}

			s.mustNotUninstall(t, "dxctl runtime unconfigure")
			s.UnconfigureContainerd(t)
			s.mustNotUninstall(t, "default/one", "--restart")
			output := s.uninstallRestarted(t)
			if !strings.Contains(output, "default/one over to "+realShim+"\n") || strings.Contains(output, "/plain") {
				t.Errorf("output %q, want container one and its real shim", output)
			}
			if diff := cmp.Diff(before, []int{s.mustHave(t, "one", 0).PID, s.mustHave(t, "plain").PID}); diff != "" {
				t.Errorf("running (-before +after):\n%s", diff)
			}
			for _, pattern := range []string{filepath.Dir(s.ShimFile()) + "/*", s.StateDir, s.RuntimeDir, s.ContainerdConfig() + ".*"} {
				if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
					t.Errorf("left: %v (%v)", left, err)
				}
			}
			if diff := cmp.Diff(unconfigured, string(bed.ReadFile(t, s.ContainerdConfig()))); diff != "" {
				t.Errorf("containerd's configuration (-want +got):\n%s", diff)
			}

			// The last container of the chart's uninstall pods waits for a signal.
			hold := s.uninstall("--purge", "--hold")
			status, stdout, stderr := call(t, exec.Command("timeout", append([]string{"--preserve-status", "1"}, hold.Args...)...))
			if status != 0 || !strings.Contains(stdout, "nothing to remove\nwaiting") {
				t.Errorf("--hold: status %d\n%s%s", status, stdout, stderr)
			}

			if out, err := s.Ctr("task", "exec", "--exec-id", "ls", "one", "ls", "/"); err != nil {
				t.Errorf("run a command in the container: %v\n%s", err, out)
			}
			s.killShim(t, "one")
			s.CtrDetach(t, "later", "--runtime", bed.Runc)
		})
	}
}

// uninstallRestarted removes everything, starts containerd again when dxctl has ended it, and
// returns what dxctl prints.
func (s *suite) uninstallRestarted(t *testing.T) string {
	t.Helper()
	var output strings.Builder
	command := s.uninstall("--purge", "--restart", "--restart-mode", "signal", "--restart-timeout", "30s")
	command.Stdout, command.Stderr = &output, &output
	testutil.NoError(t, command.Start())
	bed.Eventually(t, 30*time.Second, "containerd ends", func() error {
		if s.Containerd.Running() {
			return errors.New("it runs")
		}
		return nil
	})
	s.Containerd.Start(t)
	if err := command.Wait(); err != nil {
		t.Fatalf("uninstall: %v\n%s", err, &output)
	}
	return output.String()
}

// TestRemoveUnderGPU removes the product under a running container with a GPU. The
// container goes on, and does not start again without its GPU.
func TestRemoveUnderGPU(t *testing.T) {
	s := start(t, bed.Options{Replicas: 2, Inventory: bed.NewInventory(1, 0), Shim: true})
	pod := s.RunPod(t, bed.GPUPod("held", 1))
	before := s.MustHave(t, pod, "main", 0)

	s.mustNotUninstall(t, fmt.Sprintf("default/%s-%s/main", pod, bed.Name), "--force")
	s.Advertiser.Kill(t)
	s.Plugin.Kill(t)
	if status, stdout, stderr := call(t, s.uninstall("--purge", "--force")); status != 0 || !strings.Contains(stdout, "removed "+s.ShimFile()) {
		t.Fatalf("with --force: status %d\n%s%s", status, stdout, stderr)
	}
	s.mustNotRestart(t, pod, before)
}
