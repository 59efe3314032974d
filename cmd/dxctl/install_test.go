//go:build unix

package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/shimfile"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// place is where a shim is installed on a node.
type place struct {
	*bed
	source, dir, real, containerdState, run string
}

const works = "#!/bin/sh\necho '" + shimfile.SelfTestPassed + "'\n"

func newPlace(t *testing.T, containerdConfig string) place {
	t.Helper()
	b := newBed(t, containerdConfig)
	in := func(name string) string { return filepath.Join(b.root, name) }
	p := place{
		bed: b, source: in("new"), dir: in("bin"), real: in("real"),
		containerdState: in("containerd"), run: in("run"),
	}
	p.put(t, p.source, works, 0o644)
	p.put(t, p.real, "", 0o755)
	return p
}

// apply makes a policy that names the real shim.
func (p place) apply(t *testing.T, realShim, log string) {
	t.Helper()
	value := policy.Default()
	value.Shim = policy.Shim{Runtime: realShim, Log: log}
	if err := policy.Write(p.state, value); err != nil {
		t.Fatal(err)
	}
}

func (p place) put(t *testing.T, path, text string, perm os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), perm); err != nil {
		t.Fatal(err)
	}
}

func (p place) get(t *testing.T, path string) string {
	t.Helper()
	text, _, err := readFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (p place) shimPath() string { return filepath.Join(p.dir, shimfile.Name()) }

func execute(t *testing.T, command *cobra.Command, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	command.SilenceErrors, command.SilenceUsage = true, true
	var out, errs bytes.Buffer
	command.SetOut(&out)
	command.SetErr(&errs)
	command.SetArgs(args)
	err = command.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

func (p place) install(t *testing.T, args ...string) (string, error) {
	t.Helper()
	stdout, _, err := execute(t, newInstallCommand(), append([]string{"--from", p.source, "--to", p.dir, "--state-dir", p.state}, args...)...)
	return stdout, err
}

func (p place) mustInstall(t *testing.T, args ...string) string {
	t.Helper()
	p.apply(t, p.real, "")
	stdout, err := p.install(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return stdout
}

// The next real shim may let ours serve containers.
func TestInstallClearsNotServed(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	p.mustInstall(t)
	if err := shimfile.WriteNotServed(p.state, shimfile.NotServed{Shim: p.real, Version: 3}); err != nil {
		t.Fatal(err)
	}
	stdout, _, err := execute(t, newStatusCommand("linux"), "--config", p.config, "--cri-socket", p.socket, "--state-dir", p.state)
	if err == nil || !strings.Contains(stdout, "the real shim "+p.real+" answers with bootstrap version 3") {
		t.Errorf("%v\n%s", err, stdout)
	}
	p.mustInstall(t)
	if _, found, err := shimfile.ReadNotServed(p.state); found || err != nil {
		t.Errorf("%t, %v", found, err)
	}
}

func (p place) uninstall(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return execute(t, newUninstallCommand("linux"), append([]string{
		"--config", p.config, "--cri-socket", p.socket, "--state-dir", p.state, "--from", p.dir,
		"--containerd-state", p.containerdState, "--runtime-dir", p.run, "--runtime", p.real,
	}, args...)...)
}

func (p place) mustUninstall(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := p.uninstall(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return stdout, stderr
}

// TestUninstallWithDamagedPolicy removes the usual log, and nothing of the working
// directory.
func TestUninstallWithDamagedPolicy(t *testing.T) {
	p := newPlace(t, mine)
	p.mustInstall(t)
	t.Chdir(t.TempDir())
	log := filepath.Join(p.state, "shim.log")
	for path, text := range map[string]string{".1": "mine", policy.Path(p.state): "{", log: "ours", log + ".1": "ours"} {
		p.put(t, path, text, 0o600)
	}
	p.mustUninstall(t)
	if !exists(".1") || exists(log) || exists(log+".1") {
		t.Errorf("another file is left: %t; the log: %t", exists(".1"), exists(log))
	}
}

// refuses checks that an uninstallation fails with the words and leaves the
// shim.
func (p place) refuses(t *testing.T, want string, args ...string) {
	t.Helper()
	stdout, _, err := p.uninstall(t, args...)
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || stdout != "" {
		t.Errorf("error %v, want one with %q; output %q", err, want, stdout)
	}
	if _, err := os.Stat(p.shimPath()); err != nil {
		t.Error(err)
	}
}

func TestInstallRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		source, real string
		args         []string
		want         string
	}{
		"no real shim":       {works, "/nowhere/shim", nil, "set shim.runtime"},
		"ours as real shim":  {works, "SHIM", nil, "own"},
		"relative directory": {works, "REAL", []string{"--to", "bin"}, "is not an absolute path"},
		"no file":            {works, "REAL", []string{"--from", "/nowhere/new"}, "/nowhere/new"},
		"no default file":    {works, "REAL", []string{"--from="}, "set --from"},
		"broken":             {"#!/bin/sh\necho broken >&2; exit 1\n", "REAL", nil, "self-test failed"},
		"another program":    {"#!/bin/sh\n", "REAL", nil, "self-test failed"},
		"not a program":      {"text", "REAL", nil, "self-test failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, "")
			p.put(t, p.source, test.source, 0o644)
			if test.real == "SHIM" {
				p.put(t, p.shimPath(), works, 0o755)
			}
			p.apply(t, strings.NewReplacer("SHIM", p.shimPath(), "REAL", p.real).Replace(test.real), "")
			_, err := p.install(t, test.args...)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

func TestUninstallLeavesNothing(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	before := p.names(t)
	p.mustInstall(t)
	for _, file := range []string{"shim.log", "shim.log.1", "allocations/record.json", attemptName, "verify.json", ".directx-nri-tmp-1"} {
		p.put(t, filepath.Join(p.state, file), "", 0o600)
	}
	stdout, stderr := p.mustUninstall(t)
	want := "removed " + p.shimPath() + "\nremoved " + p.state + "/shim.log\nremoved " + p.state + "/shim.log.1\nremoved " + p.state + "/" + attemptName + "\nremoved " + p.state + "/verify.json\n"
	if diff := cmp.Diff(want, stdout); diff != "" {
		t.Error(diff)
	}
	if !strings.HasPrefix(stderr, "kept "+p.state+": ") {
		t.Error(stderr)
	}
	stdout, stderr = p.mustUninstall(t, "--purge")
	if want := "removed " + p.state + "/allocations\nremoved " + p.state + "/policy.json\nremoved " + p.state + "/shim-runtime-is-set\nremoved " + p.state + "\n"; stdout != want || stderr != "" {
		t.Error(cmp.Diff(want, stdout), stderr)
	}
	if stdout, stderr = p.mustUninstall(t, "--purge"); stdout != "there is nothing to remove\n" || stderr != "" {
		t.Error(stdout, stderr)
	}
	if err := os.Remove(p.dir); err != nil {
		t.Errorf("the shim's directory: %v", err)
	}
	if diff := cmp.Diff(before, p.names(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// Neither a file of others in the state directory nor a directory as the shim's log
// is removed.
func TestUninstallKeepsFilesOfOthers(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	p.mustInstall(t)
	p.put(t, filepath.Join(p.state, "mine"), "", 0o600)
	if _, stderr := p.mustUninstall(t, "--purge"); stderr != "kept "+p.state+": it is not empty\n" {
		t.Error(stderr)
	}
	logs := filepath.Join(p.root, "logs")
	p.put(t, filepath.Join(logs, "mine"), "", 0o600)
	p.apply(t, p.real, logs)
	if _, _, err := p.uninstall(t); err == nil || !strings.Contains(err.Error(), logs) || !exists(filepath.Join(logs, "mine")) {
		t.Error(err)
	}
}

func TestUninstallRefusesAsLongAsContainerdUsesTheShim(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	p.mustInstall(t)
	p.must(t, append([]string{"configure"}, p.restart()...)...)
	p.refuses(t, "uses the shim: run 'dxctl runtime unconfigure --restart' first")
	// The file is right, and containerd has not read it.
	p.must(t, "unconfigure")
	p.refuses(t, "runtime handler runc of the running containerd uses the shim")
	p.put(t, filepath.Join(p.root, "restarted"), "", 0o600)
	p.mustUninstall(t)

	p = newPlace(t, "version = [\n")
	p.mustInstall(t)
	p.refuses(t, p.config+":")
}

// A container with a GPU does not start again after the removal.
func TestRemovalRequiresForce(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	p.mustInstall(t)
	p.must(t, "configure")
	dir := paths.Allocations(p.state)
	recorder, err := allocation.OpenRecorder(t.Context(), dir, testutil.Quiet())
	if err != nil {
		t.Fatal(err)
	}
	defer recorder.Close()
	token, err := recorder.Record(t.Context(), displays, []allocation.Replica{{ID: "GPU::0", InstanceID: "GPU"}}, false)
	if err == nil {
		err = allocation.OpenStore(dir).Bind(token, allocation.Holder{PodUID: "uid", Container: "main", PodNamespace: "team", PodName: "trainer"})
	}
	if err != nil {
		t.Fatal(err)
	}
	p.sandboxes = []*cri.PodSandbox{{Metadata: &cri.PodSandboxMetadata{Uid: "uid", Namespace: "team", Name: "trainer"}}}
	const names = "1 running container(s) with GPUs will not start again afterward: team/trainer/main: delete their pods first, or add --force"
	configured := p.read(t)
	if _, _, err := p.bed.run(t, "unconfigure"); err == nil || !strings.Contains(err.Error(), names) || p.read(t) != configured {
		t.Errorf("unconfigure: %v", err)
	}
	if _, stderr := p.must(t, "unconfigure", "--force"); !strings.Contains(stderr, "team/trainer/main") {
		t.Errorf("unconfigure --force: %s", stderr)
	}
	p.refuses(t, names)
	p.mustUninstall(t, "--force")
}

func TestUninstallWhenContainerdDoesNotRun(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	p.mustInstall(t)
	p.mustUninstall(t, "--cri-socket", filepath.Join(p.root, "none"))
}

func TestUninstallHandsContainersOver(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	p.mustInstall(t)
	file := filepath.Join(p.containerdState, "io.containerd.runtime.v2.task", "default", "one", "shim-binary-path")
	p.put(t, file, p.shimPath(), 0o600)

	p.refuses(t, "1 running container(s) (default/one) were started by the shim: add --restart")
	if got := p.get(t, file); got != p.shimPath() {
		t.Errorf("without --restart the bundle names %q", got)
	}
	p.refuses(t, "/nowhere/real", append(p.restart(), "--runtime", "/nowhere/real")...)
	if got := p.get(t, file); got != p.shimPath() {
		t.Errorf("without a real shim the bundle names %q", got)
	}
	// containerd reads the file only when it starts, also for the next command.
	p.refuses(t, "restart by the command", "--restart", "--restart-command", "false")
	p.refuses(t, "did not finish its restart of containerd: add --restart")
	stdout, _ := p.mustUninstall(t, p.restart()...)
	if want := "removed "; !strings.HasPrefix(stdout, want) {
		t.Error(stdout)
	}
	if got := p.get(t, file); got != p.real {
		t.Errorf("the bundle names %q", got)
	}
	for _, path := range []string{filepath.Join(p.state, pendingRestartName), p.shimPath()} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

func TestUninstallSeesWhatWasStartedMeanwhile(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	p.mustInstall(t)
	bundle := filepath.Join(p.containerdState, "io.containerd.runtime.v2.task", "default")
	p.put(t, filepath.Join(bundle, "one", "shim-binary-path"), p.shimPath(), 0o600)
	again := "cp -r " + bundle + "/one " + bundle + "/two && printf %s " + p.shimPath() + " > " + bundle + "/two/shim-binary-path"
	_, _, err := p.uninstall(t, "--restart", "--restart-command", again)
	if err == nil || !strings.Contains(err.Error(), "1 running container(s) (default/two) were started by the shim in the meantime: run the command again") {
		t.Error(err)
	}
	if _, err := os.Stat(p.shimPath()); err != nil {
		t.Error(err)
	}
}
