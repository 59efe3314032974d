//go:build e2e && linux

package e2e

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/bed"
)

const cdiFile = "/run/cdi/directx-nri.yaml" // where all runtimes look

// TestCDI runs containers with GPUs by the real Docker, Podman and CRI of containerd,
// without the product's daemons and shim.
const cdiKind = "directx.microsoft.com/gpu"

func TestCDI(t *testing.T) {
	s := start(t, bed.Options{NoKubelet: true, NRIOff: true, Inventory: bed.NewInventory(2, 1)})
	s.EditContainerd(t, "stream_server_port", "enable_cdi = true\n  stream_server_port")
	s.generate(t)

	docker := s.Docker(t)
	podman := func(args ...string) *exec.Cmd {
		return exec.Command("podman", append([]string{
			"--root", filepath.Join(s.Dir, "podman"), "--runroot", filepath.Join(s.Dir, "podman-run"),
			"--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none", "--runtime", "runc",
		}, args...)...)
	}
	second := strings.NewReplacer(`\`, "-", "{", "-", "}", "-").Replace(s.Inventory.GPUs[1].InstanceID())
	requests := map[string][]int{"0": {0}, "2": {2}, second: {1}, "all": {0, 1, 2}}
	for program, command := range map[string]func(...string) *exec.Cmd{"docker": docker, "podman": podman} {
		t.Run(program, func(t *testing.T) {
			output(t, command("load", "--input", filepath.Join(s.Dir, "image.tar")))
			for name, gpus := range requests {
				id := output(t, command("run", "--detach", "--network", "none", "--device", cdiKind+"="+name, "--env", "DIRECTX_DEVICES=mine", bed.Image, "/bin/sh", "-c", bed.Wait))
				pid, err := strconv.Atoi(output(t, command("inspect", "--format", "{{.State.Pid}}", id)))
				testutil.NoError(t, err)
				view, err := bed.ViewProcess(id, pid)
				testutil.NoError(t, err)
				if err := s.Compare(view, gpus...); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if view.Hints != "mine" {
					t.Errorf("%s: the user's variable is %q", name, view.Hints)
				}
				output(t, command("rm", "--force", id))
			}
		})
	}
	t.Run("README", func(t *testing.T) {
		output(t, docker("tag", bed.Image, "ubuntu"))
		_, run, _ := strings.Cut(string(bed.ReadFile(t, "../../README.md")), "\n# docker ")
		run, _, _ = strings.Cut(strings.ReplaceAll(run, "$PWD/bin/dxctl", s.Product("dxctl")), "\n")
		status, stdout, stderr := call(t, docker(strings.Fields(run)...)) // The inventory's GPUs have no /dev/dxg.
		if status != 1 || !strings.Contains(stdout, "/usr/lib/wsl/lib/libd3d12.so\n") || !strings.Contains(stderr, "/dev/dxg does not exist") {
			t.Errorf("docker %s: exit status %d\n%s%s", run, status, stdout, stderr)
		}
	})
	t.Run("CRI", func(t *testing.T) {
		pod := s.RunSandbox(t, "cdi")
		for name, gpus := range requests {
			id, err := pod.Run("main", &deviceplugin.ContainerAllocateResponse{CdiDevices: []*deviceplugin.CDIDevice{{Name: cdiKind + "=" + name}}})
			testutil.NoError(t, err)
			pod.MustHave(t, id, gpus...)
			pod.RemoveContainer(t, id)
		}
	})
	t.Run("a GPU that disappeared is named", func(t *testing.T) {
		s.WriteInventory(t, s.Inventory.Without(1))
		s.generate(t)
		for program, command := range map[string]func(...string) *exec.Cmd{"docker": docker, "podman": podman} {
			out, err := command("run", "--rm", "--network", "none", "--device", cdiKind+"="+second, bed.Image, "/bin/true").CombinedOutput()
			if err == nil || !strings.Contains(string(out), cdiKind+"="+second) {
				t.Errorf("%s: %v\n%s", program, err, out)
			}
		}
	})
}

// generate writes the specification of the GPUs in the inventory.
func (s *suite) generate(t *testing.T) {
	t.Helper()
	s.Dxctl(t, "config", "apply", "--config", s.ConfigFile())
	output(t, exec.Command(s.Product("dxctl"), "cdi", "generate", "--state-dir", s.StateDir, "--file", cdiFile))
}

// output runs a command, which must succeed, and returns what it prints.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	status, stdout, stderr := call(t, cmd)
	if status != 0 {
		t.Fatalf("%s: exit status %d\n%s%s", cmd, status, stdout, stderr)
	}
	return strings.TrimSpace(stdout)
}
