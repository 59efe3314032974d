package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/cri"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/runflags"
	"github.com/directx-nri/directx-nri/shim/diversion"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// ctr runs containerd's client, which is part of each release of containerd.
type ctr struct {
	program, command                  []string
	socket, namespace, runtime, image string
	timeout                           time.Duration // of each start and removal
	out                               io.Writer     // for results
}

// refusal is why containerd does not start a container.
type refusal string

func (r refusal) Error() string { return string(r) }

func isRefusal(err error) bool {
	_, ok := errors.AsType[refusal](err)
	return ok
}

// prepare checks the flags, and finds the runtime and the image.
func (c *ctr) prepare(ctx context.Context) error {
	if len(c.command) > 0 && c.image == "" {
		return cli.UsageError("a command requires --image: the pause image has no other program")
	}
	c.program[0] = findProgram(c.program[0])
	c.runtime = cmp.Or(c.runtime, defaultRuntime(containerdDir()))
	out, err := c.run(ctx, "images", "list", "--quiet")
	if err != nil {
		return errlog.WithRemedy(fmt.Errorf("list containerd's images with %s: %w", c.program[0], err), "set --ctr and --cri-socket")
	}
	if c.image != "" {
		return nil
	}
	for _, image := range slices.Sorted(slices.Values(strings.Fields(out))) {
		if strings.Contains(path.Base(image), "pause") {
			c.image = image
		}
	}
	if c.image == "" {
		return fmt.Errorf("containerd has no pause image in namespace %s: set --image", c.namespace)
	}
	return nil
}

// containerdDir returns the directory of containerd's shim, in which its clients often are.
func containerdDir() string {
	if runtime.GOOS == "windows" {
		if d, err := diversion.Open(""); err == nil { // Without it, flags can name what is needed.
			return d.Dir()
		}
	}
	return paths.Default().ShimDir
}

// findProgram returns the path of a client of containerd that is beside it and not in PATH, otherwise name.
func findProgram(name string) string {
	if _, err := exec.LookPath(name); err != nil {
		return filepath.Join(containerdDir(), name)
	}
	return name
}

// defaultRuntime returns the runtime that most likely has the runtime shim, whose directory is shimDir on Linux.
func defaultRuntime(shimDir string) string {
	if runtime.GOOS != "windows" && durable.Exists(filepath.Join(shimDir, shimfile.FileName())) {
		return shimfile.RuntimeName
	}
	return cri.RuntimeType(runtime.GOOS) // On Windows, the shim takes the place of its program.
}

// run runs ctr and returns its output. The end of ctx does not interrupt ctr, because parts of a
// container could remain.
func (c *ctr) run(ctx context.Context, args ...string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.timeout)
	defer cancel()
	socket, _ := localgrpc.ParseAddress(c.socket)
	args = slices.Concat(c.program[1:], []string{"--address", socket, "--namespace", c.namespace}, args)
	for {
		command := exec.CommandContext(ctx, c.program[0], args...)
		command.SysProcAttr = newProcessGroup()
		command.WaitDelay = time.Second
		out, err := command.Output()
		exit, hasExited := errors.AsType[*exec.ExitError](err)
		switch {
		case err == nil || !hasExited:
			return string(out), err
		case ctx.Err() != nil:
			return "", fmt.Errorf("ctr has not ended within %s", c.timeout)
		// ctr 2 checks the pipe before it sends a request, and fails while another client connects.
		case runtime.GOOS == "windows" && bytes.Contains(exit.Stderr, []byte("cannot access socket")):
			time.Sleep(100 * time.Millisecond)
		default:
			_, message, _ := strings.Cut("\n"+string(exit.Stderr), "\nctr: ")
			return "", errors.New(cmp.Or(strings.Join(strings.Fields(message), " "), string(exit.Stderr), err.Error()))
		}
	}
}

// startEdited starts a container with edits. It requests no GPU from the runtime shim.
func (c *ctr) startEdited(ctx context.Context, what string, edits ocispec.Edits) error {
	edits.Env = []string{decision.VisibleVariable + "=none"}
	flags, err := runflags.Flags(runflags.Ctr, runtime.GOOS, edits, hostfiles.Root("").Resolve)
	if err != nil {
		return cli.UnknownResult(err)
	}
	return c.start(ctx, what, flags)
}

// start starts a container with flags of 'ctr run', and prints the result. It tries twice, because the first
// start after a boot can fail. The error is a [refusal] if containerd does not start the container. After
// another error, the result is unknown.
func (c *ctr) start(ctx context.Context, what string, flags []string) error {
	err := c.try(ctx, flags)
	if isRefusal(err) {
		err = c.try(ctx, flags)
	}
	switch {
	case err == nil:
		fmt.Fprintln(c.out, "starts   "+what)
	case isRefusal(err):
		fmt.Fprintf(c.out, "refused  %s: %s\n", what, errlog.OneLine(err.Error()))
	}
	return err
}

// try starts a container with flags of 'ctr run', and removes it with its task and snapshot.
func (c *ctr) try(ctx context.Context, flags []string) error {
	id := fmt.Sprintf("dxctl-verify-%d", time.Now().UnixNano())
	args := []string{"run", "--detach", "--null-io", "--runtime", c.runtime, "--cgroup", "/" + id}
	_, startErr := c.run(ctx, slices.Concat(args, flags, []string{c.image, id}, c.command)...)
	cleanup := context.WithoutCancel(ctx)
	_, taskErr := c.run(cleanup, "tasks", "delete", "--force", id)
	_, err := c.run(cleanup, "containers", "delete", id)
	switch {
	case err != nil && !strings.Contains(err.Error(), "not found"):
		return cli.UnknownResult(fmt.Errorf("container %s in namespace %s is left behind: %w", id, c.namespace, errors.Join(err, taskErr)))
	case ctx.Err() != nil:
		return cli.UnknownResult(ctx.Err())
	case startErr != nil:
		return refusal(startErr.Error())
	}
	return nil
}
