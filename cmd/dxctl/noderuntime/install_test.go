//go:build unix

package noderuntime

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/allocationtest"
	"github.com/directx-nri/directx-nri/internal/testutil/containerdtest"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// shimNode is where a shim is installed on a node.
type shimNode struct {
	*containerdtest.FakeNode
	source, dir, real, containerdState, run string
}

const workingShim = "#!/bin/sh\necho '" + shimfile.SelfTestPassed + "'\n"

func newShimNode(t *testing.T, containerdConfig string) shimNode {
	t.Helper()
	b := containerdtest.New(t, containerdConfig)
	in := func(name string) string { return filepath.Join(b.Root, name) }
	p := shimNode{
		FakeNode: b, source: in("new"), dir: in("bin"), real: in("real"),
		containerdState: in("containerd"), run: in("run"),
	}
	testutil.WriteFile(t, p.source, workingShim, 0o644)
	testutil.WriteFile(t, p.real, "", 0o755)
	return p
}

// apply makes a policy that names the real shim.
func (p shimNode) apply(t *testing.T, realShim, log string) {
	t.Helper()
	value := policy.Default()
	value.Shim = policy.Shim{RealShim: realShim, Log: log}
	testutil.NoError(t, policy.Write(p.State, value))
}

func (p shimNode) get(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	testutil.NoError(t, err)
	return string(text)
}

func (p shimNode) shimPath() string { return filepath.Join(p.dir, shimfile.FileName()) }

func (p shimNode) install(t *testing.T, args ...string) (string, error) {
	t.Helper()
	stdout, _, err := containerdtest.Run(t, NewInstallCommand(), append([]string{"--from", p.source, "--shim-dir", p.dir, "--state-dir", p.State}, args...)...)
	return stdout, err
}

func (p shimNode) mustInstall(t *testing.T, args ...string) string {
	t.Helper()
	p.apply(t, p.real, "")
	stdout, err := p.install(t, args...)
	testutil.NoError(t, err)
	return stdout
}

// The next real shim may let ours serve containers.
func TestInstallClearsBypass(t *testing.T) {
	t.Parallel()
	p := newShimNode(t, containerdtest.Config)
	p.mustInstall(t)
	testutil.NoError(t, shimfile.RecordBypass(p.State, "the real shim "+p.real+" answers with bootstrap version 3"))
	p.mustInstall(t)
	testutil.NoError(t, shimfile.CheckBypass(p.State))
}

func (p shimNode) uninstall(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return containerdtest.Run(t, NewUninstallCommand(), append([]string{
		"--containerd-config", p.Config, "--cri-socket", p.Socket, "--state-dir", p.State, "--shim-dir", p.dir,
		"--containerd-state", p.containerdState, "--runtime-dir", p.run, "--real-shim", p.real,
		"--labels-file", filepath.Join(p.Root, "labels"),
	}, args...)...)
}

func (p shimNode) mustUninstall(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := p.uninstall(t, args...)
	testutil.NoError(t, err)
	return stdout, stderr
}

// TestUninstallWithDamagedPolicy removes the usual log, and nothing of the working directory.
func TestUninstallWithDamagedPolicy(t *testing.T) {
	p := newShimNode(t, containerdtest.Config)
	p.mustInstall(t)
	t.Chdir(t.TempDir())
	log := filepath.Join(p.State, "shim.log")
	for path, text := range map[string]string{".1": "mine", policy.Path(p.State): "{", log: "ours", log + ".1": "ours"} {
		testutil.WriteFile(t, path, text, 0o600)
	}
	p.mustUninstall(t)
	if !durable.Exists(".1") || durable.Exists(log) || durable.Exists(log+".1") {
		t.Errorf("another file is left: %t; the log: %t", durable.Exists(".1"), durable.Exists(log))
	}
}

// refuses checks that an uninstallation fails with an error and leaves the shim.
func (p shimNode) refuses(t *testing.T, want string, args ...string) {
	t.Helper()
	stdout, _, err := p.uninstall(t, args...)
	testutil.CheckError(t, "uninstall", err, want)
	if strings.Contains(errlog.Text(err), "\n") || stdout != "" {
		t.Errorf("error %q, want one line; output %q", err, stdout)
	}
	if !durable.Exists(p.shimPath()) {
		t.Error("the shim was removed")
	}
}

func TestInstallRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		source, real string
		args         []string
		want         string
	}{
		"no real shim":       {workingShim, "/nowhere/shim", nil, "set shim.realShim"},
		"ours as real shim":  {workingShim, "SHIM", nil, "is the runtime shim of directx-nri"},
		"relative directory": {workingShim, "REAL", []string{"--shim-dir", "bin"}, "is not an absolute path"},
		"no file":            {workingShim, "/nowhere/shim", []string{"--from", "/nowhere/new"}, "/nowhere/new: no such file or directory; set --from"},
		"no default file":    {workingShim, "REAL", []string{"--from="}, "set --from"},
		"broken":             {"#!/bin/sh\necho broken >&2; exit 1\n", "REAL", nil, "self-test failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newShimNode(t, "")
			testutil.WriteFile(t, p.source, test.source, 0o644)
			if test.real == "SHIM" {
				testutil.WriteFile(t, p.shimPath(), workingShim, 0o755)
			}
			p.apply(t, strings.NewReplacer("SHIM", p.shimPath(), "REAL", p.real).Replace(test.real), "")
			_, err := p.install(t, test.args...)
			testutil.CheckError(t, "install", err, test.want)
			if strings.Contains(errlog.Text(err), "\n") {
				t.Errorf("error %q, want one line", err)
			}
		})
	}
}

func TestUninstallLeavesNothing(t *testing.T) {
	t.Parallel()
	p := newShimNode(t, containerdtest.Config)
	before := p.Names(t)
	p.mustInstall(t)
	for _, file := range []string{"shim.log", "shim.log.1", "allocations/record.json", "verify.json", ".directx-nri-tmp-1"} {
		testutil.WriteFile(t, filepath.Join(p.State, file), "", 0o600)
	}
	testutil.WriteFile(t, filepath.Join(p.Root, "labels"), "", 0o600)
	stdout, stderr := p.mustUninstall(t)
	want := "removed " + p.shimPath() + "\nremoved " + p.State + "/shim.log\nremoved " + p.State + "/shim.log.1\nremoved " + p.State + "/verify.json\n"
	if diff := cmp.Diff(want, stdout); diff != "" {
		t.Error(diff)
	}
	if !strings.HasPrefix(stderr, "kept "+p.State+": ") {
		t.Error(stderr)
	}
	testutil.NoError(t, containerd.ChangeRecord{Format: 1, Failure: &containerd.RestartError{}}.Save(p.State))
	stdout, stderr = p.mustUninstall(t, "--purge")
	want = "removed " + p.State + "/allocations\nremoved " + p.State + "/policy.json\nremoved " + p.State + "/real-shim\nremoved " +
		p.Root + "/labels\nremoved " + p.State + "\n"
	if stdout != want || stderr != "" {
		t.Error(cmp.Diff(want, stdout), stderr)
	}
	if stdout, stderr = p.mustUninstall(t, "--purge"); stdout != "there is nothing to remove\n" || stderr != "" {
		t.Error(stdout, stderr)
	}
	if err := os.Remove(p.dir); err != nil {
		t.Errorf("the shim's directory: %v", err)
	}
	if diff := cmp.Diff(before, p.Names(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// Neither a file of others in the state directory nor a directory or a device as the shim's log is removed.
func TestUninstallKeepsFilesOfOthers(t *testing.T) {
	t.Parallel()
	p := newShimNode(t, containerdtest.Config)
	p.mustInstall(t)
	testutil.WriteFile(t, filepath.Join(p.State, "mine"), "", 0o600)
	if _, stderr := p.mustUninstall(t, "--purge"); stderr != "kept "+p.State+": it is not empty\n" {
		t.Error(stderr)
	}
	logs := filepath.Join(p.Root, "logs")
	testutil.WriteFile(t, filepath.Join(logs, "mine"), "", 0o600)
	p.apply(t, p.real, logs)
	_, _, err := p.uninstall(t)
	testutil.CheckError(t, "another's file", err, logs)
	if !durable.Exists(filepath.Join(logs, "mine")) {
		t.Error("another's file was removed")
	}
	pipe := filepath.Join(p.Root, "pipe") // in place of /dev/null, as only root can create a device
	testutil.NoError(t, syscall.Mkfifo(pipe, 0o600))
	p.apply(t, p.real, pipe)
	if p.mustUninstall(t); !durable.Exists(pipe) {
		t.Error("a log that is no file was removed")
	}
}

func TestUninstallRefusesWhileContainerdUsesTheShim(t *testing.T) {
	t.Parallel()
	p := newShimNode(t, containerdtest.Config)
	p.mustInstall(t)
	must(t, p.FakeNode, append([]string{"configure", "--shim-dir", p.dir}, p.Restart()...)...)
	p.refuses(t, "uses the shim; run 'dxctl runtime unconfigure --restart' first")
	// The file is restored, and containerd has not read it.
	must(t, p.FakeNode, "unconfigure")
	p.refuses(t, "runtime handler runc of the running containerd uses the shim")
	testutil.WriteFile(t, filepath.Join(p.Root, "restarted"), "", 0o600)
	p.mustUninstall(t)

	p = newShimNode(t, "version = [\n")
	p.mustInstall(t)
	p.refuses(t, p.Config+":")
}

// A container with a GPU does not start again after the removal.
func TestRemovalRequiresForce(t *testing.T) {
	t.Parallel()
	p := newShimNode(t, containerdtest.Config)
	p.mustInstall(t)
	must(t, p.FakeNode, "configure", "--shim-dir", p.dir)
	dir := paths.Allocations(p.State)
	token := allocationtest.Record(t, dir, "directx.microsoft.com/display", "GPU")
	testutil.NoError(t, allocation.OpenStore(dir).Bind(token, allocation.Holder{PodUID: "uid", Container: "main", PodNamespace: "team", PodName: "trainer"}))
	p.Sandboxes = []*cri.PodSandbox{{Metadata: &cri.PodSandboxMetadata{Uid: "uid", Namespace: "team", Name: "trainer"}}}
	const names = "1 running container(s) with GPUs will not start again afterward: team/trainer/main: delete their pods first; to continue anyway, add --force"
	for _, what := range []string{"to undo", "nothing to undo"} {
		before := p.Read(t)
		_, _, err := run(t, p.FakeNode, "unconfigure")
		testutil.CheckError(t, what, err, names)
		if p.Read(t) != before {
			t.Errorf("%s: a refused command changed the file to\n%s", what, p.Read(t))
		}
		if _, stderr := must(t, p.FakeNode, "unconfigure", "--force"); !strings.Contains(stderr, "team/trainer/main") {
			t.Errorf("%s: unconfigure --force: %s", what, stderr)
		}
	}
	p.refuses(t, names)
	p.mustUninstall(t, "--force")
}

func TestUninstallWhenContainerdDoesNotRun(t *testing.T) {
	t.Parallel()
	p := newShimNode(t, containerdtest.Config)
	p.mustInstall(t)
	p.mustUninstall(t, "--cri-socket", filepath.Join(p.Root, "none"))
}

func TestUninstallHandsContainersOver(t *testing.T) {
	t.Parallel()
	p := newShimNode(t, containerdtest.Config)
	p.mustInstall(t)
	file := filepath.Join(p.containerdState, "io.containerd.runtime.v2.task", "default", "one", "shim-binary-path")
	testutil.WriteFile(t, file, p.shimPath(), 0o600)

	bundleNames := func(shim string) {
		t.Helper()
		if got := p.get(t, file); got != shim {
			t.Errorf("the bundle names %q, want %q", got, shim)
		}
	}
	p.refuses(t, "1 running container(s) (default/one) were started by the shim; add --restart")
	bundleNames(p.shimPath())
	p.refuses(t, "/nowhere/real", append(p.Restart(), "--real-shim", "/nowhere/real")...)
	bundleNames(p.shimPath())
	// containerd reads the file only when it starts, also for the next command.
	p.refuses(t, "restart by the command", "--restart", "--restart-command", "false")
	p.refuses(t, "did not finish its restart of containerd; add --restart")
	stdout, _ := p.mustUninstall(t, p.Restart()...)
	if want := "restarted containerd\nremoved "; !strings.HasPrefix(stdout, want) {
		t.Error(stdout)
	}
	bundleNames(p.real)
	if record := containerd.RecordPath(p.State); durable.Exists(record) || durable.Exists(p.shimPath()) {
		t.Errorf("the record is left: %t; the shim: %t", durable.Exists(record), durable.Exists(p.shimPath()))
	}
}

func TestUninstallFindsContainersStartedMeanwhile(t *testing.T) {
	t.Parallel()
	p := newShimNode(t, containerdtest.Config)
	p.mustInstall(t)
	bundle := filepath.Join(p.containerdState, "io.containerd.runtime.v2.task", "default")
	testutil.WriteFile(t, filepath.Join(bundle, "one", "shim-binary-path"), p.shimPath(), 0o600)
	again := "cp -r " + bundle + "/one " + bundle + "/two && printf %s " + p.shimPath() + " > " + bundle + "/two/shim-binary-path"
	_, _, err := p.uninstall(t, "--restart", "--restart-command", again)
	testutil.CheckError(t, "uninstall", err, "1 running container(s) (default/two) were started by the shim in the meantime; run the command again")
	if !durable.Exists(p.shimPath()) {
		t.Error("the shim was removed")
	}
}
