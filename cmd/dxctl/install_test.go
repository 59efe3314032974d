//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"directx-nri/internal/config"
	"directx-nri/internal/shimfile"
	"directx-nri/internal/testutil"
)

// place is where a shim is installed on a node.
type place struct {
	*bed
	source, dir, shimConfig, real, containerdState, run string
}

const works = "#!/bin/sh\necho '" + shimfile.SelfTestPassed + "'\n"

func newPlace(t *testing.T, containerdConfig string) place {
	t.Helper()
	b := newBed(t, containerdConfig)
	in := func(name string) string { return filepath.Join(b.folder, name) }
	p := place{
		bed: b, source: in("new"), dir: in("bin"), shimConfig: in("etc/config.yaml"), real: in("real"),
		containerdState: in("containerd"), run: in("run"),
	}
	p.put(t, p.source, works, 0o644)
	p.put(t, p.real, "", 0o755)
	return p
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
	stdout, _, err := execute(t, newInstallCommand(), append([]string{"--from", p.source, "--to", p.dir, "--shim-config", p.shimConfig}, args...)...)
	return stdout, err
}

func (p place) mustInstall(t *testing.T, args ...string) string {
	t.Helper()
	stdout, err := p.install(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return stdout
}

func (p place) uninstall(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return execute(t, newUninstallCommand("linux"), append([]string{
		"--config", p.config, "--cri-socket", p.socket, "--state-dir", p.state, "--from", p.dir,
		"--shim-config", p.shimConfig, "--containerd-state", p.containerdState, "--runtime-dir", p.run,
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

// refuses checks that an uninstallation fails with the words and leaves the
// shim.
func (p place) refuses(t *testing.T, want string, args ...string) {
	t.Helper()
	stdout, _, err := p.uninstall(t, args...)
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || stdout != "" {
		t.Errorf("error %v, want one that says %q; output %q", err, want, stdout)
	}
	if _, err := os.Stat(p.shimPath()); err != nil {
		t.Error(err)
	}
}

func TestInstall(t *testing.T) {
	t.Parallel()
	p := newPlace(t, "")
	args := []string{"--runtime", p.real, "--inventory", "/gpus.yaml", "--state-dir", p.state}
	if out, want := p.mustInstall(t, args...), p.shimConfig+" is written\n"+p.shimPath()+" is installed\n"; out != want {
		t.Error(cmp.Diff(want, out))
	}
	got, err := config.Read(p.shimConfig)
	if err != nil || got.Inventory != "/gpus.yaml" || got.StateDir != p.state || got.Shim.Runtime != p.real {
		t.Errorf("%+v, %v", got, err)
	}
	if out, want := p.mustInstall(t, args...), p.shimPath()+" is up to date\n"; out != want {
		t.Error(cmp.Diff(want, out))
	}
	// Nobody has written anything into the file, so that it may be changed.
	args[3] = "/others.yaml"
	if out, want := p.mustInstall(t, args...), p.shimConfig+" is written\n"+p.shimPath()+" is up to date\n"; out != want {
		t.Error(cmp.Diff(want, out))
	}
	if got, err := config.Read(p.shimConfig); err != nil || got.Inventory != "/others.yaml" {
		t.Errorf("%+v, %v", got, err)
	}
}

const head = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\n"

func TestInstallAndAConfigurationOfSomebodyElse(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, want string }{
		"has it":       {head + "inventory: /gpus.yaml # mine\n", ""},
		"lacks it":     {head + "# mine\n", "set inventory: /gpus.yaml in it"},
		"other value":  {head + "inventory: /mine.yaml\n", "set inventory: /gpus.yaml in it"},
		"unparsable":   {head + "inventory: [\n", "mend the file, or remove it"},
		"other key":    {head + "mine: 1\n", "mine"},
		"no more ours": {shimConfigHead + head + "inventory: /mine.yaml\n# mine\n", "set inventory: /gpus.yaml in it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, "")
			p.put(t, p.shimConfig, strings.Replace(test.text, "kind: Configuration\n", "kind: Configuration\nshim: {runtime: "+p.real+"}\n", 1), 0o600)
			before := p.get(t, p.shimConfig)
			_, err := p.install(t, "--inventory", "/gpus.yaml")
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one that says %q", err, test.want)
			}
			if diff := cmp.Diff(before, p.get(t, p.shimConfig)); diff != "" {
				t.Error(diff)
			}
			if _, err := os.Stat(p.shimPath()); (err == nil) != (test.want == "") {
				t.Errorf("the shim: %v", err)
			}
		})
	}
}

func TestInstallRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(p place)
		args   []string
		want   string
	}{
		"no real shim":      {nil, []string{"--runtime", "/nowhere/shim"}, "name it with --runtime"},
		"ours as real shim": {func(p place) { p.put(t, p.shimPath(), works, 0o755) }, []string{"--runtime", "SHIM"}, "own"},
		"relative folder":   {nil, []string{"--to", "bin"}, "is not an absolute path"},
		"relative state":    {nil, []string{"--state-dir", "state"}, "is not an absolute path"},
		"no file":           {nil, []string{"--runtime", "REAL", "--from", "/nowhere/new"}, "/nowhere/new"},
		"broken":            {func(p place) { p.put(t, p.source, "#!/bin/sh\necho broken >&2; exit 1\n", 0o644) }, []string{"--runtime", "REAL"}, "self-test failed"},
		"no shim at all":    {func(p place) { p.put(t, p.source, "#!/bin/sh\n", 0o644) }, []string{"--runtime", "REAL"}, "self-test failed"},
		"no program":        {func(p place) { p.put(t, p.source, "text", 0o644) }, []string{"--runtime", "REAL"}, "self-test failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, "")
			if test.change != nil {
				test.change(p)
			}
			var args []string
			for _, arg := range test.args {
				args = append(args, strings.NewReplacer("SHIM", p.shimPath(), "REAL", p.real).Replace(arg))
			}
			_, err := p.install(t, args...)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one that says %q", err, test.want)
			}
		})
	}
}

func TestUninstallLeavesNothing(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	before := p.names(t)
	p.mustInstall(t, "--runtime", p.real, "--state-dir", p.state)
	for _, file := range []string{"shim.log", "shim.log.1", "allocations/record.json"} {
		p.put(t, filepath.Join(p.state, file), "", 0o600)
	}
	stdout, stderr := p.mustUninstall(t)
	want := "removed " + p.shimPath() + "\nremoved " + p.state + "/shim.log\nremoved " + p.state + "/shim.log.1\nremoved " + p.shimConfig + "\n"
	if diff := cmp.Diff(want, stdout); diff != "" {
		t.Error(diff)
	}
	if want := "kept " + p.state + ": the allocation records are there; --purge removes it\n"; stderr != want {
		t.Error(cmp.Diff(want, stderr))
	}
	stdout, stderr = p.mustUninstall(t, "--purge")
	if want := "removed " + p.state + "/allocations\nremoved " + p.state + "\n"; stdout != want || stderr != "" {
		t.Error(cmp.Diff(want, stdout), stderr)
	}
	if stdout, stderr = p.mustUninstall(t, "--purge"); stdout != "nothing of ours is there\n" || stderr != "" {
		t.Error(stdout, stderr)
	}
	if err := os.Remove(p.dir); err != nil {
		t.Errorf("the shim's folder: %v", err)
	}
	if diff := cmp.Diff(before, p.names(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// TestUninstallOfWhatCannotBeRemoved keeps in mind that it is ours.
func TestUninstallOfWhatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	testutil.EnforceModes(t)
	p := newPlace(t, mine)
	o := uninstallOptions{target: target{stateDir: p.state}, shimConfig: p.shimConfig}
	own, err := openOwnFiles(p.state)
	if err != nil {
		t.Fatal(err)
	}
	if err := own.put(p.shimConfig, []byte(someConfig)); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Dir(p.shimConfig)
	if err := os.Chmod(folder, 0o500); err != nil {
		t.Fatal(err)
	}
	var r removal
	o.removeConfig(t.Context(), &r)
	if err := os.Chmod(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if len(r.errs) == 0 || !errors.Is(r.errs[0], os.ErrPermission) {
		t.Errorf("errors %v", r.errs)
	}
	if own, err = openOwnFiles(p.state); err != nil || !own.knows(p.shimConfig) {
		t.Errorf("it is forgotten: %v", err)
	}
	r = removal{}
	o.removeConfig(t.Context(), &r)
	if len(r.errs) != 0 || len(r.removed) != 1 || exists(p.shimConfig) {
		t.Errorf("%+v", r)
	}
}

// TestUninstallRemovesWhatWasNeverFinished by a program that was ended while it
// wrote, and a lock.
func TestUninstallRemovesWhatWasNeverFinished(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	before := p.names(t)
	p.mustInstall(t, "--runtime", p.real, "--state-dir", p.state)
	for _, folder := range []string{filepath.Dir(p.shimConfig), p.state} {
		if err := os.MkdirAll(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		f, err := os.CreateTemp(folder, ".directx-nri-tmp-")
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	p.put(t, filepath.Join(p.state, ownFilesLock), "", 0o600)
	p.put(t, filepath.Join(p.state, attemptName), "", 0o600)
	p.mustUninstall(t, "--purge")
	if err := os.Remove(p.dir); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, p.names(t)); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// TestUninstallHolds goes on after its work, and ends well when it is told to.
func TestUninstallHolds(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	o := uninstallOptions{
		target: target{os: "linux", config: p.config, criSocket: p.socket, stateDir: p.state, restartLimit: time.Minute},
		from:   p.dir, shimConfig: p.shimConfig, containerdState: p.containerdState, runtimeDir: p.run, runtimeGiven: true, purge: true, hold: true,
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out told
	ended := make(chan error, 1)
	go func() { ended <- o.run(ctx, &out, &out) }()
	for deadline := time.Now().Add(30 * time.Second); out.count("waiting to be told to end") == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%q", out.lines)
		}
	}
	select {
	case err := <-ended:
		t.Fatalf("it does not hold: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	// What fails is told, and not waited over.
	p.put(t, p.config, "version = ", 0o640)
	if err := o.run(t.Context(), &out, &out); err == nil {
		t.Error("containerd's configuration cannot be read, and it held")
	}
}

func TestUninstallKeepsWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	p.mustInstall(t, "--runtime", p.real, "--state-dir", p.state)
	p.put(t, p.shimConfig, p.get(t, p.shimConfig)+"# mine\n", 0o600)
	p.put(t, filepath.Join(p.state, "mine"), "", 0o600)
	p.put(t, p.shimConfig+config.LastGood, "", 0o600)
	stdout, stderr := p.mustUninstall(t, "--purge")
	if !strings.Contains(stdout, "removed "+p.shimConfig+config.LastGood+"\n") {
		t.Errorf("the copy is left: %s", stdout)
	}
	want := "kept " + p.shimConfig + ": somebody has written or changed it\nkept " + p.state + ": other files are in it\n"
	if diff := cmp.Diff(want, stderr); diff != "" {
		t.Error(diff)
	}
	if !strings.HasSuffix(p.get(t, p.shimConfig), "# mine\n") {
		t.Error("the configuration is changed")
	}
}

// TestUninstallRemovesNoFolderForALog: a configuration may name a folder as the
// shim's log by mistake.
func TestUninstallRemovesNoFolderForALog(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	logs := filepath.Join(p.folder, "logs")
	p.put(t, filepath.Join(logs, "mine"), "", 0o600)
	p.put(t, p.shimConfig, head+"stateDir: "+p.state+"\nshim: {runtime: "+p.real+", log: "+logs+"}\n", 0o600)
	p.mustInstall(t)
	if _, _, err := p.uninstall(t); err == nil || !strings.Contains(err.Error(), logs) {
		t.Errorf("error %v, want one that names %s", err, logs)
	}
	if _, err := os.Stat(filepath.Join(logs, "mine")); err != nil {
		t.Error(err)
	}
}

func TestUninstallRefusesAsLongAsContainerdUsesTheShim(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	p.mustInstall(t, "--runtime", p.real)
	p.must(t, append([]string{"configure"}, p.restart()...)...)
	p.refuses(t, "the runtime handler runc go through the shim: run 'dxctl runtime unconfigure --restart' first")
	// The file is right, and containerd does not know.
	p.must(t, "unconfigure")
	p.refuses(t, "the running containerd has containers of the runtime handler runc go through the shim")
	p.put(t, filepath.Join(p.folder, "restarted"), "", 0o600)
	p.mustUninstall(t)

	p = newPlace(t, "version = [\n")
	p.mustInstall(t, "--runtime", p.real)
	p.refuses(t, p.config+":")
}

func TestUninstallWhenContainerdDoesNotRun(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	p.mustInstall(t, "--runtime", p.real)
	p.mustUninstall(t, "--cri-socket", filepath.Join(p.folder, "none"))
}

func TestUninstallHandsContainersOver(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	p.mustInstall(t, "--runtime", p.real)
	file := filepath.Join(p.containerdState, "io.containerd.runtime.v2.task", "default", "one", "shim-binary-path")
	p.put(t, file, p.shimPath(), 0o600)

	p.refuses(t, "1 container(s) run that were started through the shim (default/one): run this again with --restart")
	if got := p.get(t, file); got != p.shimPath() {
		t.Errorf("without --restart the bundle names %q", got)
	}
	p.refuses(t, "name it with --runtime", append(p.restart(), "--runtime", "/nowhere/real")...)
	if got := p.get(t, file); got != p.shimPath() {
		t.Errorf("without a real shim the bundle names %q", got)
	}
	// containerd knows only when it was restarted, also for the next one who asks.
	p.refuses(t, "restart by the command", "--restart", "--restart-command", "false")
	p.refuses(t, "has not been restarted since")
	stdout, _ := p.mustUninstall(t, p.restart()...)
	if want := "containerd is restarted\nremoved "; !strings.HasPrefix(stdout, want) {
		t.Error(stdout)
	}
	if got := p.get(t, file); got != p.real {
		t.Errorf("the bundle names %q", got)
	}
	for _, path := range []string{p.state, p.shimPath()} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

func TestUninstallSeesWhatWasStartedMeanwhile(t *testing.T) {
	t.Parallel()
	p := newPlace(t, mine)
	p.mustInstall(t, "--runtime", p.real)
	bundle := filepath.Join(p.containerdState, "io.containerd.runtime.v2.task", "default")
	p.put(t, filepath.Join(bundle, "one", "shim-binary-path"), p.shimPath(), 0o600)
	again := "cp -r " + bundle + "/one " + bundle + "/two && printf %s " + p.shimPath() + " > " + bundle + "/two/shim-binary-path"
	_, _, err := p.uninstall(t, "--restart", "--restart-command", again)
	if err == nil || !strings.Contains(err.Error(), "1 container(s) were started through the shim in the meantime (default/two): run this again") {
		t.Error(err)
	}
	if _, err := os.Stat(p.shimPath()); err != nil {
		t.Error(err)
	}
}

func TestInstallLooksBesideItself(t *testing.T) {
	t.Parallel()
	_, _, err := execute(t, newInstallCommand(), "--to", t.TempDir(), "--shim-config", filepath.Join(t.TempDir(), "none"), "--runtime", "sh")
	// The test's own folder has no shim.
	if err == nil || !strings.Contains(err.Error(), shimfile.Base) || !strings.Contains(err.Error(), "--from") {
		t.Error(err)
	}
}

// told is what a program tells, a line at a time.
type told struct {
	mu    sync.Mutex
	lines []string
}

func (l *told) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, string(p))
	return len(p), nil
}

func (l *told) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range l.lines {
		if strings.Contains(line, part) {
			n++
		}
	}
	return n
}

const someConfig = configHead + "replicas: 3\n"
