package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/bounded"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/shim/criquery"
)

// exitFailure is the exit status of a refused start.
const exitFailure = 1

// shim is one invocation of the shim.
type shim struct {
	program  string   // the path by which this program was called
	args     []string // without the program's name
	env      []string // NAME=value
	bundle   string   // the working directory
	stateDir string   // has the node policy, the inventory and the allocation records
	files    decision.Files
	// stderr receives one line when a start is refused, which containerd reports. It receives nothing
	// when a start succeeds: containerd reads the output of a start as the address of the shim.
	stderr io.Writer

	container decision.Container // before editBundle, it has only an ID
	config    []byte             // config.json before the edits, nil until it is read
	logger    *logrus.Logger
}

// main handles the call and returns the exit status: that of the real shim if it was started. On
// Linux, main does not return if the real shim is started.
func (s *shim) main() int {
	s.container.ID = filepath.Base(s.bundle) // containerd names a bundle by its container.
	path, err := s.realShim()
	if err == nil && s.isStart() {
		err = s.editBundle()
	}
	if err == nil {
		var status int
		if status, err = s.exec(path); err == nil {
			return status
		}
	}
	s.report(err)
	return exitFailure
}

// report prints why the call fails. The line has no newline, because containerd appends to it.
func (s *shim) report(err error) {
	if !s.isStart() {
		fmt.Fprint(s.stderr, errlog.Text(fmt.Errorf("directx-nri: %w", err)))
		return
	}
	reason, err := s.container.Refuse(err)
	fmt.Fprint(s.stderr, errlog.Text(err))
	inTime(func() {
		if p, err := policy.Read(s.stateDir); err == nil { // It may not have been read for a decision.
			p.Log.Configure(s.logger)
		}
		s.container.LogRefusal(s.logger, reason, err)
	})
}

// realShim returns the path of the shim that runs the container: on Windows the one that was moved aside,
// elsewhere the one beside this program or on PATH.
func (s *shim) realShim() (string, error) {
	if runtime.GOOS == "windows" {
		return paths.RealShim(filepath.Dir(s.program)), nil
	}
	const name = "containerd-shim-runc-v2"
	path := filepath.Join(filepath.Dir(s.program), name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("the real shim is neither beside %s nor on PATH: %w", s.program, err)
	}
	return path, nil
}

// isStart reports whether the call is a start. containerd appends the action to the flags:
// https://github.com/containerd/containerd/blob/v2.4.2/core/runtime/v2/command.go
func (s *shim) isStart() bool { return len(s.args) > 0 && s.args[len(s.args)-1] == "start" }

// flagValue returns the value of the last flag in args with the given name. The argument after a flag
// without "=" is its value.
func flagValue(args []string, name string) (value string) {
	for i, arg := range args {
		flag, text, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !strings.HasPrefix(arg, "-") || flag != name {
			continue
		}
		if value = text; !hasValue && i+1 < len(args) {
			value = args[i+1]
		}
	}
	return value
}

// specName is the file of a bundle with the OCI runtime spec.
const specName = "config.json"

const (
	// startTimeout is how long it may take until a container's spec is edited. containerd ends a start after 10 s,
	// without its cause.
	startTimeout = 7 * time.Second
	// queryTimeout is the part of it that containerd may take to report the annotations of a container and its pod.
	// It usually takes less than 20 ms.
	queryTimeout = 5 * time.Second
)

var errTooSlow = decision.WithReason(decision.ReasonSlow,
	fmt.Errorf("the GPU drivers or the files of this node did not respond within %s", startTimeout))

// editBundle edits the bundle's config.json if the container requests a GPU. A panic refuses the container.
func (s *shim) editBundle() (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = errlog.PanicError(cause)
		}
	}()
	path := filepath.Join(s.bundle, specName)
	s.config, err = os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // The real shim reports it.
	case err != nil:
		return err
	case !mayRequestGPU(s.config):
		return nil
	}
	spec, err := ocispec.ParseSpec(s.config)
	if err != nil {
		return fmt.Errorf("%s: %w; whether the container requests a GPU is unknown", specName, err)
	}
	container, ok := decision.ContainerOf(spec.SpecInfo, s.container.ID)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), startTimeout, errTooSlow)
	defer cancel()
	if container.Interlock {
		s.container = container // A refusal names it.
		// The annotations are not in the spec of a Windows container. containerd passes its address to each shim.
		container.Annotations, container.PodAnnotations, err = criquery.Query(
			flagValue(s.args, "address"), queryTimeout, container.ID, spec.Annotations[decision.SandboxIDAnnotation])
		if err != nil {
			return fmt.Errorf("containerd does not report the container's annotations, which name its GPU: %w", err)
		}
	}
	request, ok := decision.ReadRequest(container)
	if !ok {
		return nil
	}
	s.container = container
	decider, err := bounded.Call(ctx, func(context.Context) (*decision.Decider, error) {
		return decision.Open(s.stateDir, container.OS, s.files, s.logger)
	})
	if err == nil {
		err = bounded.Do(ctx, func(ctx context.Context) error {
			outcome, err := decider.Decide(ctx, request)
			if err == nil && outcome.UnchangedReason == "" {
				err = editSpec(ctx, path, spec, outcome.Edits)
			}
			if err != nil {
				return err
			}
			return decider.Bind(ctx, request, outcome)
		})
	}
	if err != nil && (decider == nil || ctx.Err() != nil) && request.OnlyLocationPaths() {
		s.logger.WithField("container", s.container.ID).WithError(err).Info("Container starts unchanged: its devices may not be GPUs")
		return nil
	}
	return err
}

// editSpec applies edits to spec and writes it to path, from which it was read, unless the time is over. A crash of
// the system, from which a sync protects, also ends the container.
func editSpec(ctx context.Context, path string, spec ocispec.Spec, edits ocispec.Edits) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	edited, changed, err := spec.Apply(edits)
	if err != nil {
		return fmt.Errorf("%s: %w", specName, err)
	}
	if !changed {
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	return durable.ReplaceUnsynced(path, edited, info.Mode().Perm())
}
