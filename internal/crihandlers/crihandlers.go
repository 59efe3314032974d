// Package crihandlers asks a running containerd what CRI runtime handlers it has
// loaded, and whether containers that hold a GPU would go through our shim.
package crihandlers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"directx-nri/internal/shimname"
)

// Handler is a CRI runtime handler as containerd has loaded it.
type Handler struct {
	Name        string `json:"name"`
	RuntimeType string `json:"runtimeType"`
	// RuntimePath is the shim's absolute path, "" for the one that the type
	// names.
	RuntimePath string `json:"runtimePath,omitempty"`
	// SandboxIsolation is that option of runhcs: 0 for process isolation, 1 for
	// Hyper-V isolation.
	SandboxIsolation     int      `json:"sandboxIsolation,omitempty"`
	PodAnnotations       []string `json:"podAnnotations,omitempty"`
	ContainerAnnotations []string `json:"containerAnnotations,omitempty"`
}

// Ours tells whether the handler's containers go through our shim.
func (h Handler) Ours() bool { return shimname.Is(h.RuntimePath) }

// eligible tells whether containers of this handler can have a GPU by our shim.
func (h Handler) eligible(os string) bool {
	if os == "windows" {
		return h.RuntimeType == "io.containerd.runhcs.v1" && h.SandboxIsolation == 0
	}
	return h.RuntimeType == "io.containerd.runc.v2"
}

// ErrNotRouted tells that containers of this node do not all go through our
// shim, so that a GPU that is allocated to one might never reach it.
var ErrNotRouted = errors.New("containerd does not start containers by " + shimname.Name)

const fix = "run 'dxctl runtime configure --restart'"

// Check returns nil when each handler of this system that can have GPUs goes
// through our shim and there is at least one, or else an error that matches
// [ErrNotRouted].
func Check(handlers []Handler) error { return check(handlers, runtime.GOOS) }

func check(handlers []Handler, os string) error {
	handlers = slices.DeleteFunc(slices.Clone(handlers), func(h Handler) bool { return !h.eligible(os) })
	if len(handlers) == 0 {
		return fmt.Errorf("%w: no runtime handler can have GPUs; add one to containerd's configuration, or %s", ErrNotRouted, fix)
	}
	for _, h := range handlers {
		if !h.Ours() {
			path := h.RuntimePath
			if path == "" {
				path = "not set"
			}
			return fmt.Errorf("%w: runtime_path of the runtime handler %s is %s; %s", ErrNotRouted, h.Name, path, fix)
		}
	}
	return nil
}

// Handlers returns the handlers that containerd has loaded, sorted by name. It
// reads them from the verbose CRI status, where containerd 1.6, 1.7 and 2.x
// alike give their configuration; other runtimes do not.
func Handlers(ctx context.Context, connection grpc.ClientConnInterface) ([]Handler, error) {
	status, err := cri.NewRuntimeServiceClient(connection).Status(ctx, &cri.StatusRequest{Verbose: true})
	if err != nil {
		return nil, fmt.Errorf("ask containerd for its CRI status: %w", err)
	}
	handlers, err := parse(status.GetInfo()["config"])
	if err != nil {
		return nil, fmt.Errorf("read the configuration in containerd's CRI status: %w", err)
	}
	return handlers, nil
}

// Version returns containerd's version, such as "v1.7.35".
func Version(ctx context.Context, connection grpc.ClientConnInterface) (string, error) {
	version, err := cri.NewRuntimeServiceClient(connection).Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return "", fmt.Errorf("ask containerd for its version: %w", err)
	}
	return version.GetRuntimeVersion(), nil
}

// Major returns the major number of a version, 0 when it has none.
func Major(version string) int {
	var major int
	if _, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.", &major); err != nil {
		return 0
	}
	return major
}

func parse(config string) ([]Handler, error) {
	if config == "" {
		return nil, errors.New("there is none: is this containerd?")
	}
	var loaded struct {
		Containerd struct {
			Runtimes map[string]struct {
				RuntimeType          string   `json:"runtimeType"`
				RuntimePath          string   `json:"runtimePath"`
				PodAnnotations       []string `json:"PodAnnotations"`
				ContainerAnnotations []string `json:"ContainerAnnotations"`
				Options              struct {
					SandboxIsolation float64
				} `json:"options"`
			} `json:"runtimes"`
		} `json:"containerd"`
	}
	if err := json.Unmarshal([]byte(config), &loaded); err != nil {
		return nil, err
	}
	var handlers []Handler
	for name, r := range loaded.Containerd.Runtimes {
		handlers = append(handlers, Handler{
			Name: name, RuntimeType: r.RuntimeType, RuntimePath: r.RuntimePath, SandboxIsolation: int(r.Options.SandboxIsolation),
			PodAnnotations: r.PodAnnotations, ContainerAnnotations: r.ContainerAnnotations,
		})
	}
	slices.SortFunc(handlers, func(a, b Handler) int { return strings.Compare(a.Name, b.Name) })
	return handlers, nil
}
