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

	"directx-nri/discovery"
	"directx-nri/discovery/compiled"
	"directx-nri/internal/paths"
	"directx-nri/internal/policy"
	"directx-nri/internal/shimfile"
	"directx-nri/ocispec"
)

// selfTestShimName is the name of the real shim in the self-test: a copy of this
// program, which recognizes itself by the name.
const selfTestShimName = "directx-nri-self-test-shim"

// selfTestStatus is the exit status of that shim for all actions except start.
const selfTestStatus = 7

func isSelfTestShim(self string) bool {
	return strings.HasPrefix(filepath.Base(self), selfTestShimName)
}

// selfTestShim answers a start with its arguments and standard input.
func selfTestShim(args []string, stdin io.Reader, stdout io.Writer) int {
	if action(args) != "start" {
		return selfTestStatus
	}
	given, err := io.ReadAll(stdin)
	if err != nil {
		return exitFailure
	}
	fmt.Fprintf(stdout, "%s|%s", strings.Join(args, " "), given)
	return 0
}

// SelfTest tests the shim at the path self with a made-up container: whether it
// edits the spec, passes everything to the real shim, and refuses what it must.
func SelfTest(ctx context.Context, self string) error {
	dir, err := os.MkdirTemp(os.Getenv(shimfile.SelfTestParent), shimfile.SelfTestDirPrefix)
	if err != nil {
		return fmt.Errorf("create directory: %w", err)
	}
	// A virus scanner may still have files open. The next installation removes them.
	defer func() { _ = os.RemoveAll(dir) }()
	t := selfTester{self: self, dir: dir}
	if err := t.prepare(); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	for _, step := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"start with a request", t.startWithRequest},
		{"start without a request", t.startWithout},
		{"start with a request for a GPU that does not exist", t.startRefused},
		{"delete", t.delete},
	} {
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

type selfTester struct{ self, dir string }

func (t selfTester) path(name string) string { return filepath.Join(t.dir, name) }

func (t selfTester) prepare() error {
	realShim := t.path(selfTestShimName + filepath.Ext(t.self))
	program, err := os.ReadFile(t.self)
	if err != nil {
		return err
	}
	// The GPU has files that exist on each node.
	gpu := discovery.Device{InstanceID: "SELF-TEST", SupportsDisplay: true}
	if runtime.GOOS == "windows" {
		gpu.LocationPath = "PCIROOT(0)#PCI(1B00)"
	} else {
		gpu.DeviceNodes = []discovery.DeviceNode{{Path: "/dev/null", ContainerPath: "/dev/null"}}
	}
	p := policy.Default()
	p.Inventory, p.Shim.Runtime = true, realShim
	p.Assignment = policy.AssignByPath // on each version of Windows
	return errors.Join(
		os.WriteFile(realShim, program, 0o755),
		os.Mkdir(t.path("bundle"), 0o700),
		compiled.Write(t.path("state"), []discovery.Device{gpu}),
		policy.Write(t.path("state"), p),
	)
}

// spec writes a spec with the environment variable request.
func (t selfTester) spec(request string) ([]byte, error) {
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

func (t selfTester) call(ctx context.Context, action string) (stdout, stderr string, status int, err error) {
	command := exec.CommandContext(ctx, t.self, strings.Fields(selfTestAction+action)...)
	command.Dir = t.path("bundle")
	command.Env = append(os.Environ(), paths.StateDirVariable+"="+t.path("state"))
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

// start runs a start that must succeed and returns the specs before and after it.
func (t selfTester) start(ctx context.Context, request string) (before, after []byte, err error) {
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

func (t selfTester) startWithRequest(ctx context.Context) error {
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

func (t selfTester) startWithout(ctx context.Context) error {
	before, after, err := t.start(ctx, "A=B")
	if err == nil && !bytes.Equal(before, after) {
		err = fmt.Errorf("the spec was changed: %s", after)
	}
	return err
}

func (t selfTester) startRefused(ctx context.Context) error {
	if _, err := t.spec("DIRECTX_VISIBLE_DEVICES=99"); err != nil {
		return err
	}
	stdout, stderr, status, err := t.call(ctx, "start")
	if err == nil && (status != exitFailure || stdout != "" || !strings.HasPrefix(stderr, "directx-nri: ")) {
		err = fmt.Errorf("status %d, output %q, errors %q; want status %d and an error of directx-nri", status, stdout, stderr, exitFailure)
	}
	return err
}

func (t selfTester) delete(ctx context.Context) error {
	stdout, stderr, status, err := t.call(ctx, "delete")
	if err == nil && (status != selfTestStatus || stdout != "" || stderr != "") {
		err = fmt.Errorf("status %d, output %q, errors %q; want status %d alone", status, stdout, stderr, selfTestStatus)
	}
	return err
}
