//go:build e2e && windows

package windows

import (
	"bytes"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/winpath"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// TestRuntime runs 'dxctl.exe runtime'. The installation of the shim is in package rollout,
// and in unit tests that also run under Wine.
func TestRuntime(t *testing.T) {
	t.Parallel()
	parallel(t, part{"configure", testConfigure}, part{"restart", testRestartCommand}, part{"service", testService})
}

// dxctl runs 'dxctl.exe runtime' and fails the test unless it exits with that status and
// prints parts. It returns its standard output.
func (n node) dxctl(t *testing.T, status int, parts []string, command string, flags ...string) string {
	t.Helper()
	args := []string{"runtime", command, "--containerd-config", n.Path("containerd.toml"), "--cri-socket", n.Pipe()}
	if command == "configure" {
		args = append(args, "--shim-dir", winpath.Dir(n.Shim()))
	}
	stdout, stderr := n.Dxctl(t, status, append(args, flags...)...)
	for _, part := range parts {
		if !strings.Contains(stdout+stderr, part) {
			t.Errorf("dxctl runtime %s %q does not print %q:\n%s%s", command, flags, part, stdout, stderr)
		}
	}
	return stdout
}

func says(parts ...string) []string { return parts }

// shimPaths returns runtime_path of the handlers that use the shim.
func (n node) shimPaths(t *testing.T) map[string]string {
	t.Helper()
	stdout, _ := n.Dxctl(t, 0, "capabilities", "--containerd-config", n.Path("containerd.toml"), "--cri-socket", n.Pipe(), "--timeout", "90s", "--output", "json")
	return bed.ShimPaths(t, stdout)
}

// mustNotUseShim fails the test if a handler uses the shim.
func (n node) mustNotUseShim(t *testing.T) {
	t.Helper()
	if paths := n.shimPaths(t); len(paths) > 0 {
		t.Errorf("handlers use the shim: %v", paths)
	}
}

// testConfigure configures containerd.exe with configuration files of several providers.
func testConfigure(t *testing.T) {
	for _, test := range []struct {
		name, file string
		release    bed.Release
		// handlers are those that must use the shim, in order.
		handlers []string
	}{
		{"missing", "", "", []string{"runhcs-wcow-process"}},
		{"missing2", "", bed.Newest, []string{"runhcs-wcow-process"}},
		{"aks", "aks-windows.toml", bed.AKS1, []string{"default", "runhcs-wcow-process"}},
		// containerd 2 has handlers of its own in addition to those of the file.
		{"aks2", "aks-windows-containerd2.toml", bed.AKS2, []string{"default_runtime", "runhcs-wcow-process"}},
		{"eks", "eks-windows.toml", bed.EKS, []string{"runhcs-wcow-process"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.release != "" || test.file != "" {
				machine.NeedsDoubles(t, "the configuration is one for other releases and directories")
			}
			config := ""
			if test.file != "" {
				config = bed.ContainerdFile(t, test.file)
			}
			n := start(t, bed.Options{Name: "configure-" + test.name, Release: test.release, Config: &config})
			before := n.ContainerdConfig(t)
			n.mustNotUseShim(t)
			n.dxctl(t, 0, says("runtime handlers "+strings.Join(test.handlers, ", ")+"\n", "restart containerd"), "configure")
			configured := n.ContainerdConfig(t)
			n.mustNotUseShim(t)
			n.Kill()
			n.Start(t)
			paths := n.shimPaths(t)
			if len(paths) != len(test.handlers) {
				t.Errorf("the handlers that use the shim are %v, want %q", paths, test.handlers)
			}
			for _, handler := range test.handlers {
				if path := paths[handler]; path != n.Shim() {
					t.Errorf("handler %s is loaded with runtime_path %q, want %q", handler, path, n.Shim())
				}
			}
			pod, id := n.SandboxBy(t, n.Name("pod")), n.Name("app")
			if !n.SkipsShim() { // See testSkipped.
				n.AllocatedBy(t, pod, id, n.Record(t, bed.Display, n.GPUs[0].Replica(4)))
				n.MustHave(t, id, n.GPUs[0])
			}
			n.dxctl(t, 0, says("is already configured"), "configure")
			if again := n.ContainerdConfig(t); !bytes.Equal(again, configured) {
				t.Errorf("configured again, the file is\n%s\nand was\n%s", again, configured)
			}
			n.dxctl(t, 0, nil, "unconfigure")
			if after := n.ContainerdConfig(t); !bytes.Equal(after, before) || (after == nil) != (before == nil) {
				t.Errorf("unconfigured, the file is\n%s\nand was\n%s", after, before)
			}
			n.mustNotUseShim(t)
		})
	}
}

// testRestartCommand makes dxctl.exe restart containerd.exe, which fails first.
func testRestartCommand(t *testing.T) {
	config := "# mine\r\nversion = 2\r\n"
	n := start(t, bed.Options{Name: "command", Config: &config})
	restarter := n.NewRestarter(t, bed.Ending, bed.Well, bed.WithoutCRI, bed.Well)
	restart := []string{"--restart", "--restart-command", restarter.Command, "--restart-timeout", "5m"}
	for _, problem := range []string{"containerd.exe has ended", "containerd restarted without its CRI plugin"} {
		n.dxctl(t, 1, says(problem, n.Path("containerd.toml")+" was restored, and containerd runs with it"), "configure", restart...)
		// The same attempt is not repeated soon; one with more time is another.
		restart[len(restart)-1] = "6m"
		if got := n.ContainerdConfig(t); string(got) != config {
			t.Errorf("%s: the file is\n%s", problem, got)
		}
		n.mustNotUseShim(t)
	}
	n.dxctl(t, 1, says(" was not changed: containerd did not restart with this configuration"), "configure", restart...)
	restart[len(restart)-1] = "7m"
	n.dxctl(t, 0, says("restarted containerd"), "configure", restart...)
	if paths := n.shimPaths(t); len(paths) == 0 {
		t.Error("no handler uses the shim")
	}
	if count := restarter.Count(); count != 5 {
		t.Errorf("containerd was restarted %d times, want twice for each failure and once at the end", count)
	}
	n.dxctl(t, 0, says("already configured"), "configure", restart...)
	n.dxctl(t, 0, says("restarted containerd"), "unconfigure", restart...)
	if got := n.ContainerdConfig(t); string(got) != config {
		t.Errorf("unconfigured, the file is\n%s", got)
	}
	n.mustNotUseShim(t)
}

// testService does not restart a containerd.exe that is no native service.
func testService(t *testing.T) {
	machine.NeedsDoubles(t, "containerd is a service that is made for the test")
	config := "version = 2\r\n"
	n := start(t, bed.Options{Name: "service", Config: &config})
	service := n.NewService(t)
	n.dxctl(t, 1, says(" was not changed: containerd is not a native service"), "configure", "--service", service, "--restart")
	if got := n.ContainerdConfig(t); string(got) != config {
		t.Errorf("the file is\n%s", got)
	}
}
