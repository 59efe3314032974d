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

const (
	// selfTestShimName is the name of the real shim in the self-test: a copy of this
	// program, which recognizes itself by the name.
	selfTestShimName = "directx-nri-self-test-shim"
	// selfTestStatus is the exit status of that shim for all actions except start.
	selfTestStatus  = 7
	selfTestOptions = "options"
)

func isSelfTestShim(self string) bool {
	return strings.HasPrefix(filepath.Base(self), selfTestShimName)
}

// selfTestShim answers a start with its arguments and standard input.
func selfTestShim(args []string, stdin io.Reader, stdout io.Writer) int {
	if action, _ := parseArgs(args); action != "start" {
		return selfTestStatus
	}
	given, err := io.ReadAll(stdin)
	if err != nil {
		return exitFailure
	}
	fmt.Fprintf(stdout, "%s|%s", strings.Join(args, " "), given)
	return 0
}

// selfTestCall is a call of the shim in the self-test, and what must come of it.
type selfTestCall struct {
	request, action string
	status          int
	edited          bool // the spec gets the GPU
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
	if err := prepareSelfTest(self, dir); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	for _, call := range []selfTestCall{
		{request: "DIRECTX_VISIBLE_DEVICES=all", action: "start", edited: true},
		{request: "A=B", action: "start"},
		{request: "DIRECTX_VISIBLE_DEVICES=99", action: "start", status: exitFailure},
		{request: "A=B", action: "delete", status: selfTestStatus},
	} {
		if err := call.run(ctx, self, dir); err != nil {
			return fmt.Errorf("%s of a container with %s: %w", call.action, call.request, err)
		}
	}
	return nil
}

// prepareSelfTest makes a real shim, a bundle, and a state directory with one GPU,
// whose files exist on each node.
func prepareSelfTest(self, dir string) error {
	program, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	gpu := discovery.Device{InstanceID: "SELF-TEST", SupportsDisplay: true}
	if runtime.GOOS == "windows" {
		gpu.LocationPath = "PCIROOT(0)#PCI(1B00)"
	} else {
		gpu.DeviceNodes = []discovery.DeviceNode{{Path: "/dev/null", ContainerPath: "/dev/null"}}
	}
	p := policy.Default()
	p.Inventory, p.StandaloneEnvironment = true, true
	p.Shim.Runtime = filepath.Join(dir, selfTestShimName+filepath.Ext(self))
	p.Assignment = policy.AssignByPath // on each version of Windows
	state := filepath.Join(dir, "state")
	return errors.Join(
		os.WriteFile(p.Shim.Runtime, program, 0o755),
		os.Mkdir(filepath.Join(dir, "bundle"), 0o700),
		compiled.Write(state, []discovery.Device{gpu}),
		policy.Write(state, p),
	)
}

func (c selfTestCall) run(ctx context.Context, self, dir string) error {
	system, gpu := `"linux":{}`, `"path":"/dev/null"`
	if runtime.GOOS == "windows" {
		system, gpu = `"windows":{"layerFolders":["C:\\none"]}`, ocispec.IDTypeLocationPath
	}
	before := `{"ociVersion":"1.1.0","process":{"env":["` + c.request + `"]},` + system + `}`
	config := filepath.Join(dir, "bundle", specName)
	if err := os.WriteFile(config, []byte(before), 0o600); err != nil {
		return err
	}
	args := []string{"-namespace", "self-test", "-id", "self-test", c.action}
	command := exec.CommandContext(ctx, self, args...)
	command.Dir = filepath.Dir(config)
	command.Env = append(os.Environ(), paths.StateDirVariable+"="+filepath.Join(dir, "state"))
	command.Stdin = strings.NewReader(selfTestOptions)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	err := command.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return err
	}
	status, stdout, stderr := command.ProcessState.ExitCode(), out.String(), errs.String()
	want, refused := "", c.status == exitFailure
	if c.status == 0 {
		want = strings.Join(args, " ") + "|" + selfTestOptions
	}
	if status != c.status || stdout != want || refused != strings.HasPrefix(stderr, "directx-nri: ") || !refused && stderr != "" {
		return fmt.Errorf("status %d, output %q, errors %q; want status %d and output %q", status, stdout, stderr, c.status, want)
	}
	after, err := os.ReadFile(config)
	switch {
	case err != nil:
		return err
	case c.edited && !bytes.Contains(after, []byte(gpu)):
		return fmt.Errorf("the spec has no %s: %s", gpu, after)
	case !c.edited && string(after) != before:
		return fmt.Errorf("the spec was changed: %s", after)
	}
	return nil
}
