//go:build e2e && linux

package windows

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"directx-nri/test/windows/bed"
)

// TestRuntime runs 'dxctl.exe runtime'.
func TestRuntime(t *testing.T) {
	t.Parallel()
	for _, part := range []part{{"install", testInstall}, {"configure", testConfigure}, {"restart", testRestartCommand}, {"task", testRestartTask}} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			part.run(t)
		})
	}
}

// dxctl runs 'dxctl.exe runtime' and fails the test unless it exits with that status and
// prints parts. It returns its standard output.
func (n node) dxctl(t *testing.T, status int, parts []string, command string, flags ...string) string {
	t.Helper()
	got, stdout, stderr := n.DxctlRuntime(t, command, flags...)
	if got != status {
		t.Fatalf("dxctl runtime %s %q: exit status %d, want %d\n%s%s", command, flags, got, status, stdout, stderr)
	}
	for _, part := range parts {
		if !strings.Contains(stdout+stderr, part) {
			t.Errorf("dxctl runtime %s %q does not print %q:\n%s%s", command, flags, part, stdout, stderr)
		}
	}
	return stdout
}

// Exit statuses of dxctl.
const (
	exitOK      = 0
	exitProblem = 1
)

func says(parts ...string) []string { return parts }

// testInstall installs the shim, replaces it during a start, and tries files that are not
// working shims.
func testInstall(t *testing.T) {
	n := start(t, bed.Options{Name: "install", Bare: true})
	n.dxctl(t, exitOK, says("installed "+n.Shim()), "install")
	first := n.ShimFile(t)
	if !bytes.Equal(first, n.Product(t, directxShim)) {
		t.Error("the shim's file is not the installed one")
	}
	n.dxctl(t, exitOK, says("is up to date"), "install")

	// A program stays the same with other data behind it.
	second := append(bytes.Clone(first), "second"...)
	n.testWithHang(t, "install-hangs", func() {
		n.dxctl(t, exitOK, says("installed "), "install", "--from", n.File(t, "second.exe", string(second)))
		// Windows does not replace a program that runs.
		if left := n.beside(t); !slices.ContainsFunc(left, func(name string) bool { return strings.Contains(name, ".retired-") }) {
			t.Errorf("the running shim was not moved aside: %v", left)
		}
	})
	for name, content := range map[string][]byte{
		"damaged": first[:len(first)/2],
		"text":    []byte("not a program"),
		"other":   n.Product(t, bed.Dxctl),
	} {
		n.dxctl(t, exitProblem, says("the shim's self-test failed"), "install", "--from", n.File(t, name+".exe", string(content)))
		if !bytes.Equal(n.ShimFile(t), second) {
			t.Errorf("%s: the shim's file was changed", name)
		}
	}
	if left := n.beside(t); len(left) > 0 {
		t.Errorf("left beside the shim: %v", left)
	}
	n.testWithHang(t, "install-still", func() {})
}

// testWithHang calls do while the start of a container waits. The container starts.
func (n node) testWithHang(t *testing.T, id string, do func()) {
	t.Helper()
	finish := n.startHanging(t, id, "all")
	do()
	if err := finish(); err != nil {
		t.Fatalf("the start that waited: %v", err)
	}
	n.mustHave(t, id, n.gpus...)
	n.Delete(t, id)
	n.mustLeaveNothing(t, id)
}

// startHanging starts a container with a request and returns when the start waits. finish
// continues it and returns its error.
func (n node) startHanging(t *testing.T, id, request string) (finish func() error) {
	t.Helper()
	release := n.Hang(t, "before", id)
	args := n.RunArgs(t, bed.Directx, id, n.visible(t, id, request))
	started := make(chan error, 1)
	go func() { // Ends with ctr, at the latest when the test's cleanup continues the start.
		_, err := n.Ctr(t, args...)
		started <- err
	}()
	n.AwaitHang(t, id)
	return func() error {
		release()
		return <-started
	}
}

// beside returns the files beside the shim that belong to it.
func (n node) beside(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(n.Linux(n.Path("containerd-shim-directx-v1.*")))
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(files, func(file string) bool { return filepath.Base(file) == directxShim || strings.HasSuffix(file, ".lock") })
}

// testConfigure configures containerd.exe with configuration files of several providers.
func testConfigure(t *testing.T) {
	for _, test := range []struct {
		name, file  string
		containerd2 bool
		// handlers are those that must use the shim, in order.
		handlers []string
	}{
		{"missing", "", false, []string{"runhcs-wcow-process"}},
		{"missing2", "", true, []string{"runhcs-wcow-process"}},
		{"aks", "aks-windows.toml", false, []string{"default", "runhcs-wcow-process"}},
		// containerd 2 has handlers of its own in addition to those of the file.
		{"aks2", "aks-windows-containerd2.toml", true, []string{"default_runtime", "runhcs-wcow-process"}},
		{"eks", "eks-windows.toml", false, []string{"runhcs-wcow-process"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			config := ""
			if test.file != "" {
				config = containerdFile(t, test.file)
			}
			n := start(t, bed.Options{Name: "configure-" + test.name, Containerd2: test.containerd2, Config: &config})
			before := n.ContainerdConfig(t)
			n.dxctl(t, exitProblem, says("no runtime handler uses our shim", "dxctl runtime configure --restart"), "status")
			n.dxctl(t, exitOK, says("runtime handlers "+strings.Join(test.handlers, ", ")+"\n", "restart containerd"), "configure")
			configured := n.ContainerdConfig(t)
			n.dxctl(t, exitProblem, says("has not loaded runtime handler"), "status")
			n.Kill()
			n.Start(t)
			paths := loadedPaths(t, n.dxctl(t, exitOK, nil, "status", "--output", "json"))
			if len(paths) != len(test.handlers) {
				t.Errorf("the handlers that use the shim are %v, want %q", paths, test.handlers)
			}
			for _, handler := range test.handlers {
				if path := paths[handler]; path != n.Shim() {
					t.Errorf("handler %s is loaded with runtime_path %q, want %q", handler, path, n.Shim())
					continue
				}
				n.byRuntimePath(t, n.Name()+"-"+handler, paths[handler])
			}
			n.dxctl(t, exitOK, says("is already configured"), "configure")
			if again := n.ContainerdConfig(t); !bytes.Equal(again, configured) {
				t.Errorf("configured again, the file is\n%s\nand was\n%s", again, configured)
			}
			n.dxctl(t, exitOK, nil, "unconfigure")
			if after := n.ContainerdConfig(t); !bytes.Equal(after, before) || (after == nil) != (before == nil) {
				t.Errorf("unconfigured, the file is\n%s\nand was\n%s", after, before)
			}
			n.dxctl(t, exitProblem, says("has not loaded runtime handler"), "status")
		})
	}
}

// containerdFile returns a containerd configuration file of a provider.
func containerdFile(t *testing.T, name string) string {
	t.Helper()
	text := readFile(t, filepath.Join("..", "..", "internal", "containerdconfig", "testdata", name))
	// Another program of this machine may use the metrics' port.
	return strings.ReplaceAll(text, "0.0.0.0:10257", "127.0.0.1:0")
}

// loadedPaths returns runtime_path of the handlers that use the shim, in the file and in
// the running containerd, from the JSON output of 'dxctl.exe runtime status'.
func loadedPaths(t *testing.T, out string) map[string]string {
	t.Helper()
	var status struct {
		Containerd struct {
			Handlers []struct {
				Name, RuntimePath   string
				Loaded, Annotations bool
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		t.Fatalf("dxctl runtime status printed %q: %v", out, err)
	}
	paths := map[string]string{}
	for _, h := range status.Containerd.Handlers {
		if !h.Loaded {
			continue
		}
		paths[h.Name] = h.RuntimePath
		if !h.Annotations {
			t.Errorf("handler %s does not pass on the product's annotations", h.Name)
		}
	}
	return paths
}

// testRestartCommand makes dxctl.exe restart containerd.exe, which fails first.
func testRestartCommand(t *testing.T) {
	config := "# mine\r\nversion = 2\r\n"
	n := start(t, bed.Options{Name: "command", Config: &config})
	restarter := n.NewRestarter(t, bed.Ending, bed.Well, bed.WithoutCRI, bed.Well)
	restart := []string{"--restart", "--restart-command", restarter.Command, "--restart-timeout", "5m"}
	for _, problem := range []string{"containerd.exe has ended", "containerd restarted without its CRI plugin"} {
		n.dxctl(t, exitProblem, says(problem, n.Path("containerd.toml")+" was restored, and containerd runs with it"), "configure", restart...)
		// The same attempt is not repeated soon; one with more time is another.
		restart[len(restart)-1] = "6m"
		if got := n.ContainerdConfig(t); string(got) != config {
			t.Errorf("%s: the file is\n%s", problem, got)
		}
		n.dxctl(t, exitProblem, says("no runtime handler uses our shim"), "status")
	}
	n.dxctl(t, exitProblem, says("nothing was changed: containerd did not restart with this configuration"), "configure", restart...)
	restart[len(restart)-1] = "7m"
	n.dxctl(t, exitOK, says("restarted containerd"), "configure", restart...)
	if paths := loadedPaths(t, n.dxctl(t, exitOK, nil, "status", "--output", "json")); len(paths) == 0 {
		t.Error("no handler uses the shim")
	}
	if count := restarter.Count(); count != 5 {
		t.Errorf("containerd was restarted %d times, want twice for each failure and once at the end", count)
	}
	n.dxctl(t, exitOK, says("already configured"), "configure", restart...)
	n.dxctl(t, exitOK, says("restarted containerd"), "unconfigure", restart...)
	if got := n.ContainerdConfig(t); string(got) != config {
		t.Errorf("unconfigured, the file is\n%s", got)
	}
	n.dxctl(t, exitProblem, says("no runtime handler uses our shim"), "status")
}

// testRestartTask restarts a containerd.exe that is no native service, by the program of
// a scheduled task.
func testRestartTask(t *testing.T) {
	config := "version = 2\r\n"
	n := start(t, bed.Options{Name: "task", Config: &config})
	service := n.NewService(t)
	restart := []string{"--service", service.Name, "--restart", "--restart-timeout", "2m"}
	n.dxctl(t, exitProblem, says("nothing was changed: containerd is not a native service"), "configure", restart...)
	if got := n.ContainerdConfig(t); string(got) != config {
		t.Errorf("the file is\n%s", got)
	}
	ended := make(chan error, 1)
	go func() { // Ends with the task.
		status, stdout, stderr := n.DxctlRuntime(t, "configure", append(restart, "--restart-mode", "task")...)
		if status != exitOK {
			ended <- fmt.Errorf("exit status %d\n%s%s", status, stdout, stderr)
		}
		close(ended)
	}()
	if status, log := service.RunTask(t); status != exitOK || !strings.Contains(log, "restarted containerd") {
		t.Errorf("the task: exit status %d\n%s", status, log)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if paths := loadedPaths(t, n.dxctl(t, exitOK, nil, "status", "--output", "json")); len(paths) == 0 {
		t.Error("no handler uses the shim")
	}
	n.dxctl(t, exitOK, says("already configured"), "configure", restart...)
}
