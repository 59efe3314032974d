//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/shimfile"
)

// bed is a node: a configuration file, a shim, and a containerd that loads the
// file when its restart command has made the file "restarted".
type bed struct {
	root, config, state, socket, shim string
	sandboxes                         []*cri.PodSandbox // set before the first query
}

// containerd answers for what the file said when it was last restarted, as the
// real one does in its CRI status.
type containerd struct {
	cri.UnimplementedRuntimeServiceServer
	bed *bed

	mu     sync.Mutex
	loaded []byte
}

func (c *containerd) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	marker := filepath.Join(c.bed.root, "restarted")
	if _, err := os.Stat(marker); err == nil {
		if c.loaded, _, err = readFile(c.bed.config); err != nil {
			return nil, err
		}
		if err := os.Remove(marker); err != nil {
			return nil, err
		}
	}
	f, err := containerdconfig.Read(c.loaded, containerdconfig.Node{OS: "linux"})
	if err != nil {
		return nil, err
	}
	runtimes := map[string]any{}
	for _, h := range f.Handlers {
		runtimes[h.Name] = map[string]any{"runtimeType": h.RuntimeType, "runtimePath": h.RuntimePath}
	}
	config, err := json.Marshal(map[string]any{"containerd": map[string]any{"runtimes": runtimes}})
	return &cri.StatusResponse{Info: map[string]string{"config": string(config)}}, err
}

func (*containerd) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeVersion: "v1.7.35"}, nil
}

func (c *containerd) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	return &cri.ListPodSandboxResponse{Items: c.bed.sandboxes}, nil
}

func newBed(t *testing.T, config string) *bed {
	t.Helper()
	root := t.TempDir()
	b := &bed{root, filepath.Join(root, "config.toml"), filepath.Join(root, "state"), filepath.Join(root, "s"), filepath.Join(root, shimfile.Base), nil}
	// A process that is forked meanwhile has the file open for an instant longer, and it could
	// not be run: https://github.com/golang/go/issues/22315.
	syscall.ForkLock.RLock()
	err := os.WriteFile(b.shim, []byte("#!/bin/sh\necho "+shimfile.Base+" 1.0\n"), 0o700)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	if config != "" {
		b.write(t, b.config, config)
	}
	listener, err := net.Listen("unix", b.socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, &containerd{bed: b, loaded: []byte(config)})
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return b
}

func (b *bed) write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}

func (b *bed) read(t *testing.T) string {
	t.Helper()
	text, _, err := readFile(b.config)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// run runs 'dxctl runtime' as on Linux.
func (b *bed) run(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	command := newStatusCommand("linux")
	switch args[0] {
	case "configure":
		command = newConfigureCommand("linux")
	case "unconfigure":
		command = newUnconfigureCommand("linux")
	}
	command.SilenceErrors, command.SilenceUsage = true, true
	var out, errs bytes.Buffer
	command.SetOut(&out)
	command.SetErr(&errs)
	command.SetArgs(b.arguments(args)[1:])
	err = command.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}

// arguments returns the command's name and arguments with those for this bed.
func (b *bed) arguments(args []string) []string {
	flags := []string{args[0], "--config", b.config, "--cri-socket", b.socket}
	switch args[0] {
	case "configure":
		flags = append(flags, "--state-dir", b.state, "--shim", b.shim)
	case "unconfigure":
		flags = append(flags, "--state-dir", b.state)
	}
	return append(flags, args[1:]...)
}

func (b *bed) must(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := b.run(t, args...)
	if err != nil {
		t.Fatalf("%v: %v\n%s%s", args, err, stdout, stderr)
	}
	return stdout, stderr
}

func (b *bed) restart() []string {
	return []string{"--restart", "--restart-command", "touch " + filepath.Join(b.root, "restarted")}
}

func (b *bed) names(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(b.root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

const mine = "version = 2 # mine\n"

func TestDryRunWritesNothing(t *testing.T) {
	t.Parallel()
	b := newBed(t, mine)
	before := b.names(t)
	stdout, _ := b.must(t, "configure", "--dry-run")
	for _, want := range []string{"--- " + b.config + "\n", " version = 2 # mine\n", "\n+  runtime_path = '" + b.shim + "'\n"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if diff := cmp.Diff(before, b.names(t)); diff != "" || b.read(t) != mine {
		t.Errorf("written: %s", diff)
	}
}

// TestNothingToConfigure: NRI is on in containerd 2. Its file is neither created nor touched,
// and containerd is not restarted.
func TestNothingToConfigure(t *testing.T) {
	t.Parallel()
	for _, config := range []string{"", mine, "oom_score = 0\n"} {
		b := newBed(t, config)
		before := b.names(t)
		flags, count := b.restarts(t)
		b.must(t, append([]string{"configure", "--no-shim", "--containerd-major", "2"}, flags...)...)
		if diff := cmp.Diff(before, b.names(t)); diff != "" || b.read(t) != config || count() != 0 {
			t.Errorf("%q: %d restarts, changes: %s", config, count(), diff)
		}
	}
}

// restarts returns a command that counts, and how often it was called.
func (b *bed) restarts(t *testing.T) (flags []string, count func() int) {
	t.Helper()
	file := filepath.Join(b.root, "restarts")
	return []string{"--restart", "--restart-command", "echo restart >>" + file, "--restart-timeout", "1500ms"}, func() int {
		text, _, err := readFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), "restart")
	}
}

// TestConfigureDoesNotRestartAgainAndAgain where containerd does not load the file,
// as the kubelet has an init container do that fails.
func TestConfigureDoesNotRestartAgainAndAgain(t *testing.T) {
	t.Parallel()
	b := newBed(t, mine)
	flags, count := b.restarts(t)
	configure := append([]string{"configure"}, flags...)
	attempts := func(want int, says string) {
		t.Helper()
		_, _, err := b.run(t, configure...)
		if err == nil || !strings.Contains(err.Error(), says) || count() != want {
			t.Errorf("%d restarts, %v; want %d, and %q", count(), err, want, says)
		}
	}
	const back, refused = " was restored, and containerd runs with it", " was not changed: containerd did not restart with this configuration at "
	attempts(2, back)
	attempts(2, refused)
	attempts(2, refused)
	if b.read(t) != mine {
		t.Errorf("the file is\n%s", b.read(t))
	}
	if err := os.Remove(filepath.Join(b.state, attemptName)); err != nil {
		t.Fatal(err)
	}
	attempts(4, back)
	b.write(t, b.config, mine+"# changed\n")
	attempts(6, back)
	configure = append(configure, "--restart-timeout", "310ms")
	attempts(8, back)
	attempts(8, refused)

	// A successful attempt removes the record.
	b.must(t, append([]string{"configure"}, b.restart()...)...)
	if exists(filepath.Join(b.state, attemptName)) {
		t.Error("the record of the attempt is left")
	}
}

// unconfigure does not restart containerd if a handler would still use our shim
// afterward, because others configured it.
func TestUnconfigureDoesNotRestartInVain(t *testing.T) {
	t.Parallel()
	b := newBed(t, mine)
	b.must(t, "configure")
	b.write(t, b.config, strings.Replace(b.read(t), b.shim, "/elsewhere/"+shimfile.Base, 1))
	if err := os.WriteFile(filepath.Join(b.root, "restarted"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	flags, count := b.restarts(t)
	for range 3 {
		_, stderr, err := b.run(t, append([]string{"unconfigure"}, flags...)...)
		if err == nil || !strings.Contains(err.Error(), "still use the shim: runtime handlers runc") || !strings.Contains(stderr, "was changed since") || !exists(filepath.Join(b.state, journalName)) {
			t.Fatalf("error %v, %s", err, stderr)
		}
	}
	// The first time, our annotations are taken out.
	if count() != 1 {
		t.Errorf("%d restarts, want 1", count())
	}
}

// In a pod, a link can point to a directory that is not mounted.
func TestLinkThatLeadsNowhere(t *testing.T) {
	t.Parallel()
	b := newBed(t, "")
	if err := os.Symlink(filepath.Join(b.root, "unseen", "config.toml"), b.config); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"configure", "unconfigure"} {
		if _, _, err := b.run(t, command); err == nil || !strings.Contains(err.Error(), b.config+" is a symbolic link; use its target") {
			t.Errorf("%s: %v", command, err)
		}
	}
	if _, err := os.Readlink(b.config); err != nil {
		t.Error(err)
	}
}

func TestUnconfigureKeepsOthersChanges(t *testing.T) {
	t.Parallel()
	b := newBed(t, "")
	b.must(t, "configure")
	b.write(t, b.config, b.read(t)+"\n[debug]\n  level = \"debug\"\n")
	b.must(t, "configure", "--add-handler=other") // after another program's change
	b.must(t, "unconfigure")
	if diff := cmp.Diff("version = 2\n\n[debug]\n  level = \"debug\"\n", b.read(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := os.Stat(b.state); err == nil {
		t.Error("the state directory is left")
	}
}

func TestAnotherFileInItsPlace(t *testing.T) {
	t.Parallel()
	b := newBed(t, "version = 2\n[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n")
	b.must(t, "configure")
	const fresh = "version = 3\n"
	b.write(t, b.config, fresh)
	b.must(t, "configure", "--containerd-major=2")
	b.must(t, "unconfigure", "--containerd-major=2")
	if diff := cmp.Diff(fresh, b.read(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
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
		"no shim":           {mine, []string{"configure", "--shim", "/nowhere/" + shimfile.Base}, "dxctl runtime install"},
		"a relative shim":   {mine, []string{"configure", "--shim", shimfile.Base}, "not an absolute path"},
		"a shim of others":  {mine, []string{"configure", "--shim", "/bin/sh"}, "must be named"},
		"nothing to do":     {mine, []string{"configure", "--no-shim", "--no-nri"}, "leave nothing to configure"},
		"handler, no shim":  {mine, []string{"configure", "--no-shim", "--handler=x"}, "excludes --handler"},
		"handler's name":    {mine, []string{"configure", "--add-handler=GPU_1"}, "lowercase letters"},
		"handler's hyphen":  {mine, []string{"configure", "--add-handler=-gpu"}, "lowercase letters"},
		"file version":      {mine, []string{"configure", "--file-version=1"}, "--file-version 1"},
		"major":             {mine, []string{"status", "--containerd-major=3"}, "--containerd-major 3"},
		"command, no reset": {mine, []string{"configure", "--restart-command=x"}, "requires --restart"},
		"output":            {mine, []string{"status", "-o", "xml"}, "want yaml or json"},
		"not configured":    {mine, []string{"status"}, "no runtime handler uses our shim"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, test.config)
			_, _, err := b.run(t, test.args...)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
			if b.read(t) != test.config {
				t.Errorf("the file is\n%s", b.read(t))
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
		b := newBed(t, "imports = "+test.imports+"\n"+mine)
		if err := os.Mkdir(filepath.Join(b.root, "conf.d"), 0o700); err != nil {
			t.Fatal(err)
		}
		for file, text := range test.files {
			b.write(t, filepath.Join(b.root, "conf.d", file), text)
		}
		_, _, err := b.run(t, "configure")
		if err == nil {
			_, _, err = b.run(t, "configure") // The file is not an import of its own.
		}
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: error %v, want %q", name, err, test.want)
		}
	}
}

func TestRestartModeUsage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		os, mode, by, want string
	}{
		{"linux", "", "", ""},
		{"linux", restartByService, "true", ""},
		{"linux", restartBySignal, "", ""},
		{"linux", restartBySignal, "true", "excludes --restart-mode"},
		{"windows", restartBySignal, "", "is not supported on windows"},
		{"linux", restartByTask, "", "is not supported on linux"},
	} {
		err := (&target{os: test.os, restart: true, restartMode: test.mode, restartBy: test.by}).check()
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

func TestRecordThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for text, perm := range map[string]os.FileMode{"{": 0o600, "": 0o666} {
		b := newBed(t, mine)
		b.must(t, "configure")
		record := filepath.Join(b.state, journalName)
		if text != "" {
			b.write(t, record, text)
		}
		if err := os.Chmod(record, perm); err != nil {
			t.Fatal(err)
		}
		configured := b.read(t)
		for _, command := range []string{"configure", "unconfigure"} {
			if _, _, err := b.run(t, command); err == nil || !strings.Contains(err.Error(), record) || text == "" && !errors.Is(err, durable.ErrUntrusted) {
				t.Errorf("%s: error %v", command, err)
			}
		}
		if after, err := os.ReadFile(record); err != nil || text != "" && string(after) != text || b.read(t) != configured {
			t.Errorf("written over: %q, %v", after, err)
		}
	}
}

// A status that is unknown is an error, and the output has the cause.
func TestStatusIsUnknown(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(b *bed){
		"config.toml:1:1: ":         func(b *bed) { b.write(t, b.config, "= 1") },
		"no such file or directory": func(b *bed) { b.socket = filepath.Join(b.root, "none") },
	} {
		b := newBed(t, mine)
		b.must(t, "configure")
		change(b)
		stdout, _, err := b.run(t, "status")
		if err == nil || !strings.Contains(err.Error(), "dxctl doctor") || !strings.Contains(stdout, want) {
			t.Errorf("error %v, want %q in\n%s", err, want, stdout)
		}
	}
}

func TestLinkStaysALink(t *testing.T) {
	t.Parallel()
	b := newBed(t, mine)
	link := filepath.Join(b.root, "link.toml")
	if err := os.Symlink(b.config, link); err != nil {
		t.Fatal(err)
	}
	target := b.config
	b.config = link
	b.must(t, "configure")
	if got, err := os.Readlink(link); err != nil || got != target {
		t.Errorf("%q, %v", got, err)
	}
	b.must(t, "unconfigure")
	if b.read(t) != mine {
		t.Errorf("the file is\n%s", b.read(t))
	}
}

// The kubelet accepts plugins from everyone who can write its directory.
func TestDoctorChecksTheKubeletsDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "kubelet"), 0o700), os.Chmod(filepath.Join(dir, "kubelet"), 0o777)); err != nil {
		t.Fatal(err)
	}
	out, err := ask(t, append([]string{"doctor", "--state-dir", filepath.Join(dir, "state")}, emptyNode(dir)...)...)
	if err == nil || !strings.Contains(out, "problem permissions: "+filepath.Join(dir, "kubelet")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// A disk that hangs does not stop doctor, which reports it.
func TestDoctorOnADiskThatHangs(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		filepath.Base(policy.Path("")): "read node policy: no answer",
		pendingRestartName:             "check the files of directx-nri: no answer",
	} {
		dir := t.TempDir()
		state := filepath.Join(dir, "state")
		pipe := filepath.Join(state, name)
		if err := errors.Join(os.Mkdir(state, 0o700), syscall.Mkfifo(pipe, 0o600)); err != nil {
			t.Fatal(err)
		}
		args := append([]string{"doctor", "--state-dir", state}, emptyNode(dir)...)
		out, err := ask(t, append(args, "--timeout", "300ms")...)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("%v\n%s", err, out)
		}
		writer, err := os.OpenFile(pipe, os.O_WRONLY, 0) // The query in the background ends.
		if err != nil {
			t.Fatal(err)
		}
		if err := writer.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRealShim: the handler that has the node policy's shim can run ours, which runs that.
func TestRealShim(t *testing.T) {
	t.Parallel()
	b := newBed(t, mine+"[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.a]\nruntime_type = 'io.containerd.runc.v2'\nruntime_path = '/opt/a'\n")
	if _, _, err := b.run(t, "configure", "--dry-run"); err == nil || !strings.Contains(err.Error(), "runtime handler a has runtime_path /opt/a, which is not the shim that ours runs") {
		t.Errorf("another shim: %v", err)
	}
	p := policy.Default()
	p.Shim.Runtime = "/opt/a"
	if err := policy.Write(b.state, p); err != nil {
		t.Fatal(err)
	}
	if stdout, stderr := b.must(t, "configure", "--dry-run"); stderr != "" || !strings.Contains(stdout, "-runtime_path = '/opt/a'\n+runtime_path = '"+b.shim+"'") {
		t.Errorf("the policy's shim: %s%s", stdout, stderr)
	}
}
