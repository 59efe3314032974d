//go:build unix

package noderuntime

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd"
	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/criclient"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/containerdtest"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// newCommand returns a command of 'dxctl runtime'.
func newCommand(name string) *cobra.Command {
	if name == "configure" {
		return NewConfigureCommand()
	}
	return NewUnconfigureCommand()
}

// flags returns the arguments of a command on a node; the first one is its name.
func flags(n *containerdtest.FakeNode, args []string) []string {
	all := n.Flags()
	if args[0] == "configure" {
		all = append(all, "--shim-dir", n.Root)
	}
	return append(all, args[1:]...)
}

// run runs 'dxctl runtime'.
func run(t *testing.T, n *containerdtest.FakeNode, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return containerdtest.Run(t, newCommand(args[0]), flags(n, args)...)
}

func must(t *testing.T, n *containerdtest.FakeNode, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := run(t, n, args...)
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", args, err, stdout, stderr)
	}
	return stdout, stderr
}

// checkLoaded fails the test unless the running containerd uses the shim, or does not.
func checkLoaded(t *testing.T, n *containerdtest.FakeNode, when string, want bool) {
	t.Helper()
	loaded, err := criclient.ReadRunning(t.Context(), n.Socket)
	if got := len(handlersWithShim(loaded.Handlers)) > 0; err != nil || got != want {
		t.Errorf("%s: containerd uses the shim: %t, %v", when, got, err)
	}
}

func TestDryRunWritesNothing(t *testing.T) {
	t.Parallel()
	b := containerdtest.New(t, containerdtest.Config)
	before := b.Names(t)
	stdout, _ := must(t, b, "configure", "--dry-run")
	for _, want := range []string{"--- " + b.Config + "\n", " version = 2 # mine\n", "\n+  runtime_path = '" + b.Shim() + "'\n"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if diff := cmp.Diff(before, b.Names(t)); diff != "" || b.Read(t) != containerdtest.Config {
		t.Errorf("written: %s", diff)
	}
}

// TestNothingToConfigure: NRI is on in containerd 2. Its file is neither created nor touched,
// and containerd is not restarted.
func TestNothingToConfigure(t *testing.T) {
	t.Parallel()
	for _, config := range []string{"", containerdtest.Config, "oom_score = 0\n"} {
		b := containerdtest.New(t, config)
		before := b.Names(t)
		flags, count := restarts(t, b)
		must(t, b, append([]string{"configure", "--no-shim", "--containerd-major", "2"}, flags...)...)
		if diff := cmp.Diff(before, b.Names(t)); diff != "" || b.Read(t) != config || count() != 0 {
			t.Errorf("%q: %d restarts, changes: %s", config, count(), diff)
		}
	}
}

// restarts returns the flags of a command that containerd does not notice, and how often it ran.
func restarts(t *testing.T, b *containerdtest.FakeNode) (flags []string, count func() int) {
	t.Helper()
	file := filepath.Join(b.Root, "restarts")
	return []string{"--restart", "--restart-command", "echo restart >>" + file, "--restart-timeout", "1500ms"}, func() int {
		text, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		return strings.Count(string(text), "restart")
	}
}

// TestConfigureWaitsAfterFailure: the kubelet runs an init container that fails again and again.
func TestConfigureWaitsAfterFailure(t *testing.T) {
	t.Parallel()
	b := containerdtest.New(t, containerdtest.Config)
	flags, count := restarts(t, b)
	configure := append([]string{"configure"}, flags...)
	attempts := func(wantCount int, message string) {
		t.Helper()
		_, _, err := run(t, b, configure...)
		testutil.CheckError(t, "configure", err, message)
		if count() != wantCount {
			t.Errorf("%d restarts, want %d", count(), wantCount)
		}
	}
	const back, refused = " was restored, and containerd runs with it", " was not changed: containerd did not restart with this configuration at "
	attempts(2, back)
	attempts(2, refused)
	attempts(2, refused)
	if b.Read(t) != containerdtest.Config || containerd.IsConfigured(b.State) {
		t.Errorf("configured: %t; the file is\n%s", containerd.IsConfigured(b.State), b.Read(t))
	}
	testutil.NoError(t, containerd.ChangeRecord{Format: 1}.Save(b.State))
	attempts(4, back)
	testutil.WriteFile(t, b.Config, containerdtest.Config+"# changed\n", 0o640)
	attempts(6, back)
	configure = append(configure, "--restart-timeout", "310ms")
	attempts(8, back)
	attempts(8, refused)

	// A successful attempt removes the failure.
	must(t, b, append([]string{"configure"}, b.Restart()...)...)
	if r := mustRead(t, b); r.Failure != nil {
		t.Errorf("left: %v", r.Failure)
	}
}

// TestConfigureRestartsWhenNecessary: for a change, and for what containerd has not loaded yet.
func TestConfigureRestartsWhenNecessary(t *testing.T) {
	t.Parallel()
	b := containerdtest.New(t, containerdtest.Config)
	_, count := restarts(t, b)
	restart := []string{"configure", "--restart", "--restart-command", "echo restart >>" + filepath.Join(b.Root, "restarts") + "; touch " + filepath.Join(b.Root, "restarted")}
	for range 2 {
		if _, stderr := must(t, b, "configure", "--no-nri"); !strings.Contains(stderr, restartNotice) {
			t.Error(stderr)
		}
	}
	checkLoaded(t, b, "without a restart", false)
	for i, test := range []struct {
		args []string
		want int // restarts
	}{{[]string{"--no-nri"}, 1}, {[]string{"--no-nri"}, 1}, {nil, 2}, {nil, 2}} {
		if _, stderr := must(t, b, append(slices.Clone(restart), test.args...)...); count() != test.want || strings.Contains(stderr, restartNotice) {
			t.Errorf("%d: %d restarts, want %d: %s", i, count(), test.want, stderr)
		}
	}
	checkLoaded(t, b, "in the end", true)
	if _, stderr := must(t, b, "unconfigure"); !strings.Contains(stderr, restartNotice) {
		t.Error(stderr)
	}
}

// A handler that others configured still uses our shim after a restart.
func TestUnconfigureRestartsWhenNecessary(t *testing.T) {
	t.Parallel()
	b := containerdtest.New(t, containerdtest.Config)
	must(t, b, "configure")
	testutil.WriteFile(t, b.Config, strings.Replace(b.Read(t), b.Shim(), "/elsewhere/"+shimfile.BaseName, 1), 0o640)
	testutil.WriteFile(t, filepath.Join(b.Root, "restarted"), "", 0o600)
	if _, stderr := must(t, b, "unconfigure", "--dry-run"); !strings.Contains(stderr, "was changed since") {
		t.Errorf("dry run: %s", stderr)
	}
	flags, count := restarts(t, b)
	for range 3 {
		_, stderr, err := run(t, b, append([]string{"unconfigure"}, flags...)...)
		testutil.CheckError(t, "unconfigure", err, "still use the shim: runc")
		if !strings.Contains(stderr, "was changed since") || !durable.Exists(containerd.RecordPath(b.State)) {
			t.Fatalf("the record exists: %t; %s", durable.Exists(containerd.RecordPath(b.State)), stderr)
		}
	}
	// The first time, our annotations are removed.
	if count() != 1 {
		t.Errorf("%d restarts, want 1", count())
	}
}

// In a pod, a link can point to a directory that is not mounted.
func TestDanglingLink(t *testing.T) {
	t.Parallel()
	b := containerdtest.New(t, "")
	testutil.NoError(t, os.Symlink(filepath.Join(b.Root, "unseen", "config.toml"), b.Config))
	for _, command := range []string{"configure", "unconfigure"} {
		_, _, err := run(t, b, command)
		testutil.CheckError(t, command, err, b.Config+" is a symbolic link; use its target")
	}
	if _, err := os.Readlink(b.Config); err != nil {
		t.Error(err)
	}
}

// TestUnconfigureKeepsOthersChanges: others change or replace the file between our changes.
func TestUnconfigureKeepsOthersChanges(t *testing.T) {
	t.Parallel()
	const fresh = "version = 3\n"
	for original, test := range map[string]struct {
		others func(configured string) string
		args   []string
		want   string
	}{
		"": {
			func(configured string) string { return configured + "\n[debug]\n  level = \"debug\"\n" },
			[]string{"--add-handler", "other"}, "version = 2\n\n[debug]\n  level = \"debug\"\n",
		},
		"version = 2\n[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n": {
			func(string) string { return fresh }, []string{"--containerd-major=2"}, fresh,
		},
	} {
		b := containerdtest.New(t, original)
		must(t, b, "configure")
		testutil.WriteFile(t, b.Config, test.others(b.Read(t)), 0o640)
		must(t, b, append([]string{"configure"}, test.args...)...)
		must(t, b, "unconfigure", "--containerd-major=2")
		if diff := cmp.Diff(test.want, b.Read(t)); diff != "" || durable.Exists(b.State) {
			t.Errorf("the state directory is left: %t (-want +got):\n%s", durable.Exists(b.State), diff)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config string
		args   []string
		want   string
	}{
		"not TOML":          {"version = 2\nx = = 1\n", []string{"configure"}, "config.toml:2:"},
		"no shim":           {containerdtest.Config, []string{"configure", "--shim-dir", "/nowhere"}, "dxctl runtime install"},
		"no shim, dry run":  {containerdtest.Config, []string{"configure", "--dry-run", "--shim-dir", "/nowhere"}, "dxctl runtime install"},
		"a relative shim":   {containerdtest.Config, []string{"configure", "--shim-dir", "bin"}, "not an absolute path"},
		"nothing to do":     {containerdtest.Config, []string{"configure", "--no-shim", "--no-nri"}, "leave nothing to configure"},
		"handler, no shim":  {containerdtest.Config, []string{"configure", "--no-shim", "--handler=x"}, "excludes --handler"},
		"handler's name":    {containerdtest.Config, []string{"configure", "--add-handler=GPU_1"}, "lowercase letters"},
		"handler's hyphen":  {containerdtest.Config, []string{"configure", "--add-handler=-gpu"}, "lowercase letters"},
		"command, no reset": {containerdtest.Config, []string{"configure", "--restart-command=x"}, "requires --restart"},
		"command and mode":  {containerdtest.Config, []string{"configure", "--restart", "--restart-command=x", "--restart-mode=signal"}, "excludes --restart-mode"},
		"not containerd's":  {containerdtest.Config, []string{"configure", "--restart", "--restart-mode=signal"}, "was not changed: restart by a signal"}, // but this test's
		"dry run, restart":  {containerdtest.Config, []string{"configure", "--restart", "--dry-run"}, "--dry-run excludes --restart"},
		"no time":           {containerdtest.Config, []string{"configure", "--restart-timeout=0s"}, "0s is not positive"},
		"unknown mode":      {containerdtest.Config, []string{"configure", "--restart", "--restart-mode=task"}, "want one of service, signal"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := containerdtest.New(t, test.config)
			_, _, err := run(t, b, test.args...)
			testutil.CheckError(t, "run", err, test.want)
			if b.Read(t) != test.config || durable.Exists(b.State) {
				t.Errorf("the state directory exists: %t; the file is\n%s", durable.Exists(b.State), b.Read(t))
			}
		})
	}
}

// containerd reads imports of imports, and does not start without one.
func TestImports(t *testing.T) {
	t.Parallel()
	const ours = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.registry]\n"
	for name, test := range map[string]struct {
		imports string
		files   map[string]string
		want    string
	}{
		"none":               {`["conf.d/*.toml"]`, nil, ""},
		"harmless":           {`["conf.d/*.toml"]`, map[string]string{"a.toml": "version = 2\nimports = ['../config.toml', 'a.toml']\n"}, ""},
		"override":           {`["conf.d/*.toml"]`, map[string]string{"a.toml": ours}, "conf.d/a.toml, which "},
		"override by import": {`["conf.d/a.toml"]`, map[string]string{"a.toml": "version = 2\nimports = ['b']\n", "b": ours}, "conf.d/b, which "},
		"syntax":             {`["./conf.d/a.toml"]`, map[string]string{"a.toml": "= 1"}, "conf.d/a.toml:1:1"},
		"missing":            {`["conf.d/a.toml"]`, nil, "conf.d/a.toml: no such file"},
		"missing by import":  {`["conf.d/a.toml"]`, map[string]string{"a.toml": "version = 2\nimports = ['b']\n"}, "conf.d/b: no such file"},
		"bad pattern":        {`["conf.d/[*"]`, nil, "syntax error in pattern"},
	} {
		b := containerdtest.New(t, "imports = "+test.imports+"\n"+containerdtest.Config)
		testutil.NoError(t, os.Mkdir(filepath.Join(b.Root, "conf.d"), 0o700))
		for file, text := range test.files {
			testutil.WriteFile(t, filepath.Join(b.Root, "conf.d", file), text, 0o640)
		}
		_, _, err := run(t, b, "configure")
		if err == nil {
			_, _, err = run(t, b, "configure") // The file is not an import of its own.
		}
		testutil.CheckError(t, name, err, test.want)
	}
}

func TestSignalOnWindows(t *testing.T) {
	t.Parallel()
	r := restarter{Instance: containerd.Instance{OS: "windows"}, allowRestart: true, restartMode: restartBySignal, restartTimeout: 1}
	testutil.CheckError(t, "flags", r.CheckFlags(), "is not supported on windows")
}

func TestRecordThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for text, perm := range map[string]os.FileMode{"{": 0o600, "": 0o666} {
		b := containerdtest.New(t, containerdtest.Config)
		must(t, b, "configure")
		record := containerd.RecordPath(b.State)
		if text != "" {
			testutil.WriteFile(t, record, text, 0o640)
		}
		testutil.NoError(t, os.Chmod(record, perm))
		configured := b.Read(t)
		for _, command := range []string{"configure", "unconfigure"} {
			_, _, err := run(t, b, command)
			testutil.CheckError(t, command, err, record)
			if text == "" && !errors.Is(err, access.ErrUntrusted) {
				t.Errorf("%s: error %v, want %v", command, err, access.ErrUntrusted)
			}
		}
		after, err := os.ReadFile(record)
		testutil.NoError(t, err)
		if text != "" && string(after) != text {
			t.Errorf("the record is written over: %q", after)
		}
		if b.Read(t) != configured {
			t.Errorf("the file is\n%s", b.Read(t))
		}
	}
}

func TestLinkStaysALink(t *testing.T) {
	t.Parallel()
	b := containerdtest.New(t, containerdtest.Config)
	link := filepath.Join(b.Root, "link.toml")
	testutil.NoError(t, os.Symlink(b.Config, link))
	release := b.Config
	b.Config = link
	must(t, b, "configure")
	if got, err := os.Readlink(link); err != nil || got != release {
		t.Errorf("%q, %v", got, err)
	}
	must(t, b, "unconfigure")
	if b.Read(t) != containerdtest.Config {
		t.Errorf("the file is\n%s", b.Read(t))
	}
}

// TestLinkWithAnotherTarget: the directory of a snap's revision is copied, and the link "current" names the copy.
func TestLinkWithAnotherTarget(t *testing.T) {
	t.Parallel()
	b := containerdtest.New(t, containerdtest.Config)
	target, link := b.Config, filepath.Join(b.Root, "current")
	testutil.NoError(t, os.Symlink(b.Root, link))
	b.Config = filepath.Join(link, filepath.Base(target))
	must(t, b, "configure")
	testutil.WriteFile(t, filepath.Join(b.Root, "copy", filepath.Base(target)), b.Read(t), 0o640)
	testutil.NoError(t, os.Remove(link), os.Symlink("copy", link))
	_, _, err := run(t, b, "unconfigure", "--containerd-config", "/another")
	testutil.CheckError(t, "another file", err, "set --containerd-config "+b.Config+";")
	must(t, b, "unconfigure")
	checkRemoved(t, b, containerdtest.Config)
}

// TestRealShim: the handler that has the node policy's shim can run ours, which runs that.
func TestRealShim(t *testing.T) {
	t.Parallel()
	b := containerdtest.New(t, containerdtest.Config+"[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.a]\nruntime_type = 'io.containerd.runc.v2'\nruntime_path = '/opt/a'\n")
	_, _, err := run(t, b, "configure", "--dry-run")
	testutil.CheckError(t, "another shim", err, "runtime handler a has runtime_path /opt/a, which is not the real shim")
	p := policy.Default()
	p.Shim.RealShim = "/opt/a"
	testutil.NoError(t, policy.Write(b.State, p))
	if stdout, stderr := must(t, b, "configure", "--dry-run"); stderr != "" || !strings.Contains(stdout, "-runtime_path = '/opt/a'\n+runtime_path = '"+b.Shim()+"'") {
		t.Errorf("the policy's shim: %s%s", stdout, stderr)
	}
	testutil.WriteFile(t, policy.Path(b.State), "{", 0o640) // as of another version
	must(t, b, "configure", "--dry-run")
	testutil.WriteFile(t, policy.RealShimFile(b.State), "", 0o640)
	_, _, err = run(t, b, "configure", "--dry-run")
	testutil.CheckError(t, "a damaged name", err, "real shim's name")
	must(t, b, "configure", "--dry-run", "--no-shim")
}

// TestFileChangedMeanwhile: a change of another program is not lost.
func TestFileChangedMeanwhile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.toml")
	testutil.WriteFile(t, path, "version = 2\n", 0o644)
	file, err := containerd.ReadConfigFile(path)
	testutil.NoError(t, err)
	testutil.WriteFile(t, path, "version = 3\n", 0o644)
	testutil.CheckError(t, "write", file.Write(nil), "run the command again")
}
