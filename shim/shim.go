// Package shim is the runtime shim, which containerd runs in place of the real
// one to add GPUs to containers where containerd calls no NRI plugin.
//
// containerd runs it with "start" as its last argument in the container's bundle,
// after it wrote config.json and before anything has read it. The shim makes the
// same decision as the NRI plugin, edits config.json, and runs the real shim with
// the same arguments, standard streams and environment. All other calls go to the
// real shim unchanged. A running container does not depend on this program.
//
// It runs at least twice for each container of a node, so it links as little as
// possible: see TestImports.
package shim

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/shimfile"
	"github.com/directx-nri/directx-nri/ocispec"
)

// exitFailure is the exit status of a refused start.
const exitFailure = 1

// call is one call of the shim.
type call struct {
	self     string   // the path of this executable
	args     []string // without the program's name
	env      []string // NAME=value
	bundle   string   // the working directory
	stateDir string   // has the node policy, the inventory and the allocation records
	version  string   // the program's own
	stdout   io.Writer
	// stderr receives one line when a start is refused. containerd reports it; on
	// success it takes all output for the address of the container's shim.
	stderr io.Writer
}

type shim struct {
	call
	parse     func([]byte) (ocispec.Spec, error)
	container decision.Container
	config    []byte         // config.json before our edits, nil until it is read
	policy    *policy.Policy // nil until it is read
}

func newShim(c call) *shim {
	id := cmp.Or(flagsOf(c.args)["id"], filepath.Base(c.bundle))
	return &shim{call: c, parse: ocispec.ParseSpec, container: decision.Container{ID: id}}
}

// main handles the call and returns the exit status, which is the real shim's if that could
// be started. On Linux, main does not return then.
func (s *shim) main() int {
	status, err := s.run()
	if err != nil {
		// containerd appends its own text, so the line has no end.
		fmt.Fprint(s.stderr, errlog.OneLine(err.Error()))
		return exitFailure
	}
	return status
}

func (s *shim) run() (int, error) {
	if s.isStart() {
		if err := s.prepare(); err != nil {
			decision.LogRefusal(s.log(), s.container, err)
			return 0, err
		}
	}
	path, err := s.realShim()
	if err != nil {
		return 0, err
	}
	if s.isInfo() && isRunhcs(path) { // Others answer by themselves.
		_, err := s.stdout.Write(runtimeInfo(shimfile.RuntimeName, s.version))
		return 0, err
	}
	return s.exec(path)
}

// isStart reports whether the call is a start. containerd appends the action to the flags,
// which a container can have as its name.
func (s *shim) isStart() bool {
	for _, arg := range slices.Backward(s.args) {
		if arg == "start" || arg == "delete" {
			return arg == "start"
		}
	}
	return false
}

// isInfo reports whether the call is -info. containerd 2.2 and later makes it at the
// creation of a task, unless the runtime's name is io.containerd.runc.v2 or
// io.containerd.runhcs.v1.
func (s *shim) isInfo() bool {
	return len(s.args) == 1 && strings.TrimLeft(s.args[0], "-") == "info"
}

// flagsOf returns the flags in args with their values. An argument after a flag that is
// none itself is its value.
func flagsOf(args []string) map[string]string {
	flags := map[string]string{}
	for i, arg := range args {
		if name, value, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "="); strings.HasPrefix(arg, "-") {
			if !hasValue && i+1 < len(args) {
				value = args[i+1]
			}
			flags[name] = value
		}
	}
	return flags
}
