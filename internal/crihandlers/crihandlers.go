// Package crihandlers asks a running containerd what CRI runtime handlers it has
// loaded, by which of them its pods run, and whether containers that hold a GPU
// would go through our shim.
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

	"directx-nri/internal/localgrpc"
	"directx-nri/internal/shimfile"
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
func (h Handler) Ours() bool { return shimfile.IsShim(h.RuntimePath) }

// eligible tells whether containers of this handler can have a GPU by our shim.
func (h Handler) eligible(os string) bool {
	if os == "windows" {
		return h.RuntimeType == "io.containerd.runhcs.v1" && h.SandboxIsolation == 0
	}
	return h.RuntimeType == "io.containerd.runc.v2"
}

// Loaded is what a running containerd has loaded.
type Loaded struct {
	// Handlers are sorted by name.
	Handlers []Handler
	// Default is the handler of pods that name none.
	Default string
	// OS is the system that containerd runs on, as runtime.GOOS has it.
	OS string
	// Major is the first number of containerd's version.
	Major int
}

// Name returns the name of the handler by which the pods run that ask containerd
// for handler, "" for none.
func (l Loaded) Name(handler string) string {
	if handler == "" {
		return l.Default
	}
	return handler
}

// Serves tells whether containers of the pods that run by the named handler get
// their GPUs: it can have GPUs, and goes through our shim.
func (l Loaded) Serves(name string) bool {
	return slices.ContainsFunc(l.Handlers, func(h Handler) bool { return h.Name == name && l.serves(h) })
}

func (l Loaded) serves(h Handler) bool { return h.Ours() && h.eligible(l.OS) && !l.passesBy() }

// passesBy tells that containerd starts a pod's containers without any shim's
// program: containerd 2 does where the shim that runs the pod's sandbox speaks
// version 3 of its protocol, as runc's does and runhcs' does not.
// https://github.com/containerd/containerd/blob/v2.4.2/core/runtime/v2/shim_manager.go
func (l Loaded) passesBy() bool { return l.OS == "linux" && l.Major >= 2 }

// Split returns the names of the handlers whose containers get their GPUs, and
// those of the others.
func (l Loaded) Split() (served, others []string) {
	for _, h := range l.Handlers {
		if l.serves(h) {
			served = append(served, h.Name)
		} else {
			others = append(others, h.Name)
		}
	}
	return served, others
}

// CanServe tells whether the named handler would be served if its containers
// went through our shim.
func (l Loaded) CanServe(name string) bool {
	return slices.ContainsFunc(l.Handlers, func(h Handler) bool { return h.Name == name && h.eligible(l.OS) })
}

// ErrNotRouted tells that no container of this node that can have GPUs goes
// through our shim, so that a GPU that is allocated to one never reaches it.
var ErrNotRouted = errors.New("containerd does not start containers by " + shimfile.Base)

// Fix is what to do on a node whose handlers do not go through our shim.
const Fix = "run 'dxctl runtime configure --restart'"

// Check returns nil when a handler that can have GPUs goes through our shim, or
// else an error that matches [ErrNotRouted]. Others may not: see [Loaded.Split].
func (l Loaded) Check() error {
	if l.passesBy() {
		return fmt.Errorf("%w: containerd %d starts a pod's containers on Linux by its sandbox's shim; have them served by the NRI plugin, with --served-by nri", ErrNotRouted, l.Major)
	}
	var first *Handler
	for _, h := range l.Handlers {
		switch {
		case l.serves(h):
			return nil
		case first == nil && h.eligible(l.OS):
			first = &h
		}
	}
	if first == nil {
		return fmt.Errorf("%w: no runtime handler can have GPUs; add one to containerd's configuration, or %s", ErrNotRouted, Fix)
	}
	path := first.RuntimePath
	if path == "" {
		path = "not set"
	}
	return fmt.Errorf("%w: runtime_path of the runtime handler %s is %s; %s", ErrNotRouted, first.Name, path, Fix)
}

// Dial returns a connection to containerd's CRI socket. See [localgrpc.Dial].
func Dial(address string) (*grpc.ClientConn, error) {
	connection, err := localgrpc.Dial(address)
	if err != nil {
		return nil, fmt.Errorf("ask containerd: %w", err)
	}
	return connection, nil
}

// Load returns what containerd has loaded, and its version.
func Load(ctx context.Context, connection grpc.ClientConnInterface) (Loaded, error) {
	loaded, err := configuration(ctx, connection)
	if err != nil {
		return Loaded{}, err
	}
	version, err := Version(ctx, connection)
	if err != nil {
		return Loaded{}, err
	}
	loaded.Major = Major(version)
	return loaded, nil
}

// Handlers returns the handlers of [Load].
func Handlers(ctx context.Context, connection grpc.ClientConnInterface) ([]Handler, error) {
	loaded, err := configuration(ctx, connection)
	return loaded.Handlers, err
}

// configuration reads the verbose CRI status, where containerd 1.6, 1.7 and 2.x
// alike give their configuration; other runtimes do not.
func configuration(ctx context.Context, connection grpc.ClientConnInterface) (Loaded, error) {
	status, err := cri.NewRuntimeServiceClient(connection).Status(ctx, &cri.StatusRequest{Verbose: true})
	if err != nil {
		return Loaded{}, fmt.Errorf("ask containerd for its CRI status: %w", err)
	}
	loaded, err := parse(status.GetInfo()["config"], runtime.GOOS)
	if err != nil {
		return Loaded{}, fmt.Errorf("read the configuration in containerd's CRI status: %w", err)
	}
	return loaded, nil
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

func parse(config, os string) (Loaded, error) {
	if config == "" {
		return Loaded{}, errors.New("there is none: is this containerd?")
	}
	var loaded struct {
		Containerd struct {
			DefaultRuntimeName string `json:"defaultRuntimeName"`
			Runtimes           map[string]struct {
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
		return Loaded{}, err
	}
	var handlers []Handler
	for name, r := range loaded.Containerd.Runtimes {
		handlers = append(handlers, Handler{
			Name: name, RuntimeType: r.RuntimeType, RuntimePath: r.RuntimePath, SandboxIsolation: int(r.Options.SandboxIsolation),
			PodAnnotations: r.PodAnnotations, ContainerAnnotations: r.ContainerAnnotations,
		})
	}
	slices.SortFunc(handlers, func(a, b Handler) int { return strings.Compare(a.Name, b.Name) })
	return Loaded{Handlers: handlers, Default: loaded.Containerd.DefaultRuntimeName, OS: os}, nil
}
