package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/shim/realshim"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// exitFailure is the exit status of a refused start.
const exitFailure = 1

// shim is one invocation of the shim.
type shim struct {
	self     string   // the path of this executable
	args     []string // without the program's name
	env      []string // NAME=value
	bundle   string   // the working directory
	stateDir string   // has the node policy, the inventory and the allocation records
	version  string   // the program's own
	files    decision.Files
	stdout   io.Writer
	// stderr receives one line when a start is refused, which containerd reports. It receives nothing
	// when a start succeeds: containerd reads the output of a start as the address of the shim.
	stderr io.Writer

	container decision.Container // before editBundle, it has only an ID
	config    []byte             // config.json before the edits, nil until it is read
	logger    *logrus.Logger     // nil until the policy is read
}

// main handles the call and returns the exit status: that of the real shim if it was started. On
// Linux, main does not return if the real shim is started.
func (s *shim) main() int {
	s.container.ID = s.containerID()
	status, err := s.run()
	if err != nil {
		if s.isStart() {
			decision.LogRefusal(s.log(), s.container, err)
		}
		// The line has no newline, because containerd appends to it.
		fmt.Fprint(s.stderr, errlog.ErrorLine(err))
		return exitFailure
	}
	return status
}

func (s *shim) run() (int, error) {
	path, err := s.realShim()
	if err == nil && s.isStart() {
		err = s.editBundle(path)
	}
	if err != nil {
		return 0, err
	}
	if s.isInfo() && isRunhcs(path) { // Other real shims answer themselves.
		_, err := s.stdout.Write(runtimeInfo(shimfile.RuntimeName, s.version))
		return 0, err
	}
	return s.exec(path)
}

// realShim returns the path of the shim that runs the container: the configured
// one, or the system's usual one beside this program or on PATH. All containers need
// one, so the usual one runs if it is unknown which one is configured.
func (s *shim) realShim() (string, error) {
	name, err := policy.ReadRealShim(s.stateDir)
	if err != nil {
		s.log().WithError(err).Error("Cannot use shim.realShim of the configuration, using " + realshim.Default())
	}
	path, err := realshim.Find(s.self, name)
	if err != nil {
		return "", errlog.WithRemedy(fmt.Errorf("directx-nri: no container can be started or deleted: %w", err),
			"install it, or set shim.realShim in the configuration")
	}
	return path, nil
}

// isStart reports whether the call is a start. containerd appends the action to the flags. The last
// one counts, because a container can have the name of an action.
func (s *shim) isStart() bool {
	for _, arg := range slices.Backward(s.args) {
		if arg == "start" || arg == "delete" {
			return arg == "start"
		}
	}
	return false
}

// isInfo reports whether the call is -info. containerd 2.2 and later makes this call when it
// creates a task, unless the runtime's name is io.containerd.runc.v2 or io.containerd.runhcs.v1.
func (s *shim) isInfo() bool {
	return len(s.args) == 1 && strings.TrimLeft(s.args[0], "-") == "info"
}

// isRunhcs reports whether the real shim at path is runhcs, which expects the runtime's options on
// its standard input and has no -info. containerd 2.3 and later recognizes runhcs by its file name,
// and passes bootstrap parameters on the standard input of all other shims, such as this one.
func isRunhcs(path string) bool {
	return strings.Contains(strings.ToLower(filepath.Base(path)), "shim-runhcs-v1") // Windows ignores the case of file names.
}

// Fields of containerd's RuntimeInfo and RuntimeVersion, api/types/introspection.proto.
const (
	infoName       = 1
	infoVersion    = 2
	versionVersion = 1
)

// runtimeInfo returns what a shim writes to its standard output for -info.
func runtimeInfo(name, version string) []byte {
	appendString := func(b []byte, number protowire.Number, value string) []byte {
		return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), value)
	}
	info := appendString(nil, infoName, name)
	return appendString(info, infoVersion, string(appendString(nil, versionVersion, version)))
}

// containerID returns the runtime's ID of the container.
func (s *shim) containerID() string { return cmp.Or(flagValue(s.args, "id"), filepath.Base(s.bundle)) }

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

// editBundle edits the bundle's config.json, for the real shim at the given path, if the container
// requests a GPU. A panic refuses the container.
func (s *shim) editBundle(realShim string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = errlog.PanicError(s.log(), r)
		}
		if err != nil {
			err = s.container.RefusalError(err)
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
	container, ok := ContainerOf(spec.SpecInfo, s.container.ID)
	if !ok {
		return nil
	}
	request, ok := decision.ReadRequest(container)
	if !ok {
		return nil
	}
	s.container = container
	p, err := policy.Read(s.stateDir)
	s.logger = newLog(s.stateDir, p, err)
	switch {
	case err != nil && request.OnlyLocationPaths():
		s.log().WithField("container", s.container.ID).WithError(err).Info("Container starts unchanged: its devices may not be GPUs")
		return nil
	case err != nil:
		return decision.WithReason(decision.ReasonConfig, err)
	}
	decider := decision.NewDecider(s.stateDir, p, s.container.OS, s.files, s.log())
	decider.RealShim = realShim
	return decider.Decide(context.Background(), request, func(edits ocispec.Edits) error { return editSpec(path, spec, edits) })
}

// editSpec applies edits to spec and writes it to path, from which it was read. A crash of the system,
// from which a sync protects, also ends the container.
func editSpec(path string, spec ocispec.Spec, edits ocispec.Edits) error {
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
