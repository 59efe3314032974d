package shim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"directx-nri/internal/config"
	"directx-nri/internal/shimfile"
	"directx-nri/ocispec"
)

// standInName is what the real shim is called in the self-test: a copy of our
// own program, which knows itself by that name.
const standInName = "directx-nri-self-test-shim"

// standInStatus is how the stand-in ends whatever is not a start.
const standInStatus = 7

func isStandIn(self string) bool {
	return strings.HasPrefix(filepath.Base(self), standInName)
}

// standIn answers a start with its arguments and what it was given on its
// standard input.
func standIn(args []string, stdin io.Reader, stdout io.Writer) int {
	if action(args) != "start" {
		return standInStatus
	}
	given, err := io.ReadAll(stdin)
	if err != nil {
		return exitFailure
	}
	fmt.Fprintf(stdout, "%s|%s", strings.Join(args, " "), given)
	return 0
}

// SelfTest tries the shim whose program is self on a made-up container: that it
// edits the spec, hands everything over and back, and refuses what it must.
func SelfTest(ctx context.Context, self string) error {
	folder, err := os.MkdirTemp(os.Getenv(shimfile.SelfTestParent), shimfile.SelfTestDirPrefix)
	if err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	// A shim that works does not fail because somebody, such as a virus scanner,
	// still has a file open. What is left goes with the next installation.
	defer func() { _ = os.RemoveAll(folder) }()
	t := tester{self: self, folder: folder}
	if err := t.prepare(); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"start with a request", t.startsWithRequest},
		{"start without a request", t.startsWithout},
		{"start with a request for a GPU that is not there", t.refuses},
		{"delete", t.deletes},
	} {
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

type tester struct{ self, folder string }

func (t tester) path(name string) string { return filepath.Join(t.folder, name) }

// A GPU of each operating system whose files every one has.
const (
	windowsGPU = "locationPath: PCIROOT(0)#PCI(1B00), display: true"
	linuxGPU   = "display: true, linux: {deviceNodes: [/dev/null]}"
)

func (t tester) prepare() error {
	standIn := t.path(standInName + filepath.Ext(t.self))
	program, err := os.ReadFile(t.self)
	if err != nil {
		return err
	}
	gpu := linuxGPU
	if runtime.GOOS == "windows" {
		gpu = windowsGPU
	}
	quoted := func(path string) string { return "'" + strings.ReplaceAll(path, "'", "''") + "'" }
	return errors.Join(
		os.WriteFile(standIn, program, 0o755),
		os.Mkdir(t.path("bundle"), 0o700),
		os.WriteFile(t.path("gpus.yaml"), []byte("apiVersion: "+config.APIVersion+"\nkind: Inventory\ndevices: [{instanceID: SELF-TEST, "+gpu+"}]\n"), 0o600),
		// The answer must be the same on every node, whatever its Windows can do.
		os.WriteFile(t.path("config.yaml"), []byte("apiVersion: "+config.APIVersion+"\nkind: "+config.Kind+"\nassignmentMode: "+string(config.AssignByPath)+
			"\nstateDir: "+quoted(t.path("state"))+"\ninventory: "+quoted(t.path("gpus.yaml"))+"\nshim: {runtime: "+quoted(standIn)+"}\n"), 0o600),
	)
}

// spec writes a container's spec that asks for GPUs by request.
func (t tester) spec(request string) ([]byte, error) {
	system := `"linux":{}`
	if runtime.GOOS == "windows" {
		system = `"windows":{"layerFolders":["C:\\none"]}`
	}
	data := []byte(`{"ociVersion":"1.1.0","process":{"env":["` + request + `"]},` + system + `}`)
	return data, os.WriteFile(t.path("bundle/"+specName), data, 0o600)
}

const (
	selfTestOptions = "options"
	selfTestAction  = "-namespace self-test -id self-test "
)

func (t tester) call(ctx context.Context, action string) (stdout, stderr string, status int, err error) {
	command := exec.CommandContext(ctx, t.self, strings.Fields(selfTestAction+action)...)
	command.Dir = t.path("bundle")
	command.Env = append(config.WithoutEnvironment(os.Environ()), config.Variable+"="+t.path("config.yaml"))
	command.Stdin = strings.NewReader(selfTestOptions)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err = command.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = nil
	}
	if err != nil {
		return "", "", 0, err
	}
	return out.String(), errs.String(), command.ProcessState.ExitCode(), nil
}

// start calls for a start that must succeed and returns the spec after it.
func (t tester) start(ctx context.Context, request string) (before, after []byte, err error) {
	before, err = t.spec(request)
	if err != nil {
		return nil, nil, err
	}
	stdout, stderr, status, err := t.call(ctx, "start")
	if err != nil {
		return nil, nil, err
	}
	if want := selfTestAction + "start|" + selfTestOptions; status != 0 || stdout != want || stderr != "" {
		return nil, nil, fmt.Errorf("status %d, output %q, errors %q; want status 0 and output %q", status, stdout, stderr, want)
	}
	after, err = os.ReadFile(t.path("bundle/" + specName))
	return before, after, err
}

func (t tester) startsWithRequest(ctx context.Context) error {
	_, after, err := t.start(ctx, "DIRECTX_VISIBLE_DEVICES=all")
	if err != nil {
		return err
	}
	want := []byte(`"path":"/dev/null"`)
	if runtime.GOOS == "windows" {
		want = []byte(ocispec.IDTypeLocationPath)
	}
	if !bytes.Contains(after, want) {
		return fmt.Errorf("the spec has no %s: %s", want, after)
	}
	return nil
}

func (t tester) startsWithout(ctx context.Context) error {
	before, after, err := t.start(ctx, "A=B")
	if err == nil && !bytes.Equal(before, after) {
		err = fmt.Errorf("the spec was changed: %s", after)
	}
	return err
}

func (t tester) refuses(ctx context.Context) error {
	if _, err := t.spec("DIRECTX_VISIBLE_DEVICES=99"); err != nil {
		return err
	}
	stdout, stderr, status, err := t.call(ctx, "start")
	if err == nil && (status != exitFailure || stdout != "" || !strings.HasPrefix(stderr, "directx-nri: ")) {
		err = fmt.Errorf("status %d, output %q, errors %q; want status %d and our line", status, stdout, stderr, exitFailure)
	}
	return err
}

func (t tester) deletes(ctx context.Context) error {
	stdout, stderr, status, err := t.call(ctx, "delete")
	if err == nil && (status != standInStatus || stdout != "" || stderr != "") {
		err = fmt.Errorf("status %d, output %q, errors %q; want status %d alone", status, stdout, stderr, standInStatus)
	}
	return err
}
