//go:build e2e && linux

package windows

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"directx-nri/test/windows/bed"
)

// TestRuntime sets nodes up with dxctl.exe.
func TestRuntime(t *testing.T) {
	t.Parallel()
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"install", testInstall},
		{"configure", testConfigure},
		{"restart", testRestartCommand},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			part.run(t)
		})
	}
}

// dxctl runs 'dxctl.exe runtime' and fails the test unless it ends with that
// status and says parts. It returns what was printed to standard output.
func (n node) dxctl(t *testing.T, status int, parts []string, command string, flags ...string) string {
	t.Helper()
	got, stdout, stderr := n.Dxctl(t, command, flags...)
	if got != status {
		t.Fatalf("dxctl runtime %s %q: exit status %d, want %d\n%s%s", command, flags, got, status, stdout, stderr)
	}
	for _, part := range parts {
		if !strings.Contains(stdout+stderr, part) {
			t.Errorf("dxctl runtime %s %q does not say %q:\n%s%s", command, flags, part, stdout, stderr)
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

// testInstall installs the shim, replaces it while one of its starts stands
// still, and is refused with files that are no working shim.
func testInstall(t *testing.T) {
	inventory := bed.NewInventory("install")
	n := node{start(t, bed.Options{Name: "install", Inventory: inventory, Bare: true}), inventory.GPUs}
	n.dxctl(t, exitOK, says("installed "+n.Shim()), "install")
	first := n.ShimFile(t)
	if !bytes.Equal(first, n.Product(t, directxShim)) {
		t.Error("the shim's file is not the one that was to be installed")
	}
	n.dxctl(t, exitOK, says("is up to date"), "install")

	// What follows a program in its file makes it another file.
	second := append(bytes.Clone(first), "second"...)
	from := n.File(t, "second.exe", second)
	n.testWithHang(t, "install-hangs", func() {
		n.dxctl(t, exitOK, says("installed "), "install", "--from", from)
		// Windows replaces no program that runs: it was moved aside.
		if left := n.beside(t); !slices.ContainsFunc(left, func(name string) bool { return strings.Contains(name, ".retired-") }) {
			t.Errorf("beside the shim, which was replaced while it ran, there is %v", left)
		}
	})
	if !bytes.Equal(n.ShimFile(t), second) {
		t.Error("the shim's file is not the second one")
	}
	for name, content := range map[string][]byte{
		"damaged": first[:len(first)/2],
		"text":    []byte("not a program"),
		// Another program.
		"other": n.Product(t, bed.Dxctl),
	} {
		from := n.File(t, name+".exe", content)
		n.dxctl(t, exitProblem, says("the shim's self-test failed"), "install", "--from", from)
		if !bytes.Equal(n.ShimFile(t), second) {
			t.Errorf("%s: the shim's file was changed", name)
		}
	}
	if left := n.beside(t); len(left) > 0 {
		t.Errorf("beside the shim, which nothing has replaced, there is %v", left)
	}
	n.testWithHang(t, "install-still", func() {})
}

// testWithHang starts a container, does something while the start stands still,
// and sees that it ends well.
func (n node) testWithHang(t *testing.T, id string, do func()) {
	t.Helper()
	finish := n.startHanging(t, id, "all")
	do()
	if err := finish(); err != nil {
		t.Fatalf("the start that stood still: %v", err)
	}
	n.mustHave(t, id, n.gpus...)
	n.Delete(t, id)
	n.mustLeaveNothing(t, id)
}

// startHanging starts a container that asks for GPUs, and returns when the start
// stands still. finish lets it go on and returns what became of it.
func (n node) startHanging(t *testing.T, id, request string) (finish func() error) {
	t.Helper()
	spec := n.Standalone(t, id)
	spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES="+request)
	release := n.Hang(t, "before", id)
	file := n.SpecFile(t, id, bed.JSON(t, spec))
	started := make(chan error, 1)
	go func() { // Ends with ctr, at the latest when the test's end lets the start go.
		_, err := n.Ctr(t, "run", "--detach", "--null-io", "--runtime", bed.Directx, "--config", file, id)
		started <- err
	}()
	bed.Eventually(t, "the start stands still", func() error {
		if !n.Hangs(id) {
			return errors.New("it does not")
		}
		return nil
	})
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
	var left []string
	for _, file := range files {
		if name := filepath.Base(file); name != directxShim && !strings.HasSuffix(name, ".lock") {
			left = append(left, name)
		}
	}
	return left
}

// testConfigure has containerd.exe read what dxctl.exe makes of its file, and
// dxctl.exe what containerd.exe says of it.
func testConfigure(t *testing.T) {
	for _, test := range []struct {
		name, file  string
		containerd2 bool
		// handlers are those that have to go through our shim, in order.
		handlers []string
	}{
		{"missing", "", false, []string{"runhcs-wcow-process"}},
		{"missing2", "", true, []string{"runhcs-wcow-process"}},
		{"aks", "aks-windows.toml", false, []string{"default", "runhcs-wcow-process"}},
		// containerd 2 has its own handlers beside those of the file.
		{"aks2", "aks-windows-containerd2.toml", true, []string{"default_runtime", "runhcs-wcow-process"}},
		{"eks", "eks-windows.toml", false, []string{"runhcs-wcow-process"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			config := ""
			if test.file != "" {
				config = containerdFile(t, test.file)
			}
			options := bed.Options{Name: "configure-" + test.name, Containerd2: test.containerd2, Config: &config}
			options.Inventory = bed.NewInventory(options.Name)
			n := node{start(t, options), options.Inventory.GPUs}
			before := n.ContainerdConfig(t)

			n.dxctl(t, exitProblem, says("no runtime handler uses our shim", "dxctl runtime configure --restart"), "status")
			n.dxctl(t, exitOK, says("runtime handlers "+strings.Join(test.handlers, ", ")+"\n", "restart containerd"), "configure")
			configured := n.ContainerdConfig(t)
			n.dxctl(t, exitProblem, says("has not loaded runtime handler"), "status")
			n.Kill()
			n.Start(t)
			paths := n.loadedPaths(t)
			if len(paths) != len(test.handlers) {
				t.Errorf("through our shim go %v, want %q", paths, test.handlers)
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
				t.Errorf("a second time the file became\n%s\nand was\n%s", again, configured)
			}
			n.dxctl(t, exitOK, nil, "unconfigure")
			if after := n.ContainerdConfig(t); !bytes.Equal(after, before) || (after == nil) != (before == nil) {
				t.Errorf("unconfigured the file is\n%s\nand was\n%s", after, before)
			}
			n.dxctl(t, exitProblem, says("has not loaded runtime handler"), "status")
		})
	}
}

// containerdFile returns a configuration file of containerd as nodes have it.
func containerdFile(t *testing.T, name string) string {
	t.Helper()
	text := readFile(t, filepath.Join("..", "..", "internal", "containerdconfig", "testdata", name))
	// This machine has something else at the metrics' port, maybe.
	return strings.ReplaceAll(text, "0.0.0.0:10257", "127.0.0.1:0")
}

// loadedPaths returns runtime_path of the handlers that go through our shim, in
// the file and in the running containerd, as dxctl.exe tells.
func (n node) loadedPaths(t *testing.T) map[string]string {
	t.Helper()
	return pathsOf(t, n.dxctl(t, exitOK, nil, "status", "--output", "json"))
}

// pathsOf is loadedPaths of what 'dxctl.exe runtime status' said as JSON.
func pathsOf(t *testing.T, out string) map[string]string {
	t.Helper()
	var status struct {
		Handlers []struct {
			Name, RuntimePath   string
			Loaded, Annotations bool
		}
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		t.Fatalf("dxctl runtime status said %q: %v", out, err)
	}
	paths := map[string]string{}
	for _, h := range status.Handlers {
		if !h.Loaded {
			continue
		}
		paths[h.Name] = h.RuntimePath
		if !h.Annotations {
			t.Errorf("handler %s does not hand on our annotations", h.Name)
		}
	}
	return paths
}

// testRestartCommand has dxctl.exe restart containerd.exe, which comes back or
// not.
func testRestartCommand(t *testing.T) {
	config := "# mine\r\nversion = 2\r\n"
	n := node{Node: start(t, bed.Options{Name: "command", Config: &config})}
	restarter := n.NewRestarter(t, bed.Ending, bed.Well, bed.WithoutCRI, bed.Well)
	restart := []string{"--restart", "--restart-command", restarter.Command, "--restart-timeout", "5m"}
	for _, problem := range []string{"containerd.exe has ended", "containerd restarted without its CRI plugin"} {
		n.dxctl(t, exitProblem, says(problem, n.Path("containerd.toml")+" was restored, and containerd runs with it"), "configure", restart...)
		// The same is not tried again at once; with more time it is not the same.
		restart[len(restart)-1] = "6m"
		if got := n.ContainerdConfig(t); string(got) != config {
			t.Errorf("%s: the file is\n%s", problem, got)
		}
		n.dxctl(t, exitProblem, says("no runtime handler uses our shim"), "status")
	}
	n.dxctl(t, exitProblem, says("nothing was changed: containerd did not restart with this configuration"), "configure", restart...)
	restart[len(restart)-1] = "7m"
	n.dxctl(t, exitOK, says("restarted containerd"), "configure", restart...)
	if paths := n.loadedPaths(t); len(paths) == 0 {
		t.Error("nothing goes through our shim")
	}
	if count := restarter.Count(); count != 5 {
		t.Errorf("containerd was restarted %d times, want twice for each time that failed and once for the last", count)
	}
	// It asks containerd for two seconds only what that has loaded, so that on a
	// busy machine it may restart it again.
	n.dxctl(t, exitOK, says("already configured"), "configure", restart...)
	n.dxctl(t, exitOK, says("restarted containerd"), "unconfigure", restart...)
	if got := n.ContainerdConfig(t); string(got) != config {
		t.Errorf("unconfigured the file is\n%s", got)
	}
	n.dxctl(t, exitProblem, says("no runtime handler uses our shim"), "status")
}
