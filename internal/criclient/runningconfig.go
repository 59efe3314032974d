package criclient

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/shimfile"
)

// RunningConfig is the configuration that a running containerd has loaded.
type RunningConfig struct {
	// Handlers are sorted by name.
	Handlers []containerdconfig.Handler
	// Default is the name of the handler of pods without a runtime class.
	Default string
	// OS is containerd's operating system, as in runtime.GOOS.
	OS string
	// Version is containerd's version, such as "v1.7.35", and Major its first number, or 0.
	Version string
	Major   int
}

// ErrShimNotUsed is the error of a node on which no runtime handler that can have
// GPUs uses the runtime shim.
var ErrShimNotUsed = errors.New("containerd does not start containers with " + shimfile.BaseName)

// ShimNotUsedRemedy is the remedy for [ErrShimNotUsed].
const ShimNotUsedRemedy = "run 'dxctl runtime configure --restart'"

// CheckShimUsed returns an error that matches [ErrShimNotUsed] unless at least one handler starts
// containers with the runtime shim, and none starts containers without their GPUs.
func (c RunningConfig) CheckShimUsed() error {
	if i := slices.IndexFunc(c.Handlers, containerdconfig.Handler.IgnoresDevices); i >= 0 {
		h := c.Handlers[i]
		return fmt.Errorf("%w: the runtime handler %s runs %s, which starts containers without their GPUs; remove that handler from containerd's configuration",
			ErrShimNotUsed, h.Name, cmp.Or(h.RuntimePath, h.RuntimeType))
	}
	// containerd 2 starts a pod's containers without running a shim binary if the shim of the sandbox
	// has version 3 of the shim protocol. runc's shim has it, and runhcs does not.
	// https://github.com/containerd/containerd/blob/v2.4.2/core/runtime/v2/shim_manager.go
	if c.OS == "linux" && c.Major >= 2 {
		return fmt.Errorf("%w: containerd %d on Linux runs the shim for a pod's sandbox only; use the NRI plugin, with --injection nri", ErrShimNotUsed, c.Major)
	}
	eligible := slices.DeleteFunc(slices.Clone(c.Handlers), func(h containerdconfig.Handler) bool { return h.CheckEligible(c.OS) != nil })
	switch {
	case slices.ContainsFunc(eligible, containerdconfig.Handler.UsesShim):
		return nil
	case len(eligible) == 0:
		return fmt.Errorf("%w: no runtime handler can have GPUs: %s; add one to containerd's configuration, or %s",
			ErrShimNotUsed, containerdconfig.WhyNotEligible(c.Handlers, c.OS), ShimNotUsedRemedy)
	}
	return fmt.Errorf("%w: runtime_path of the runtime handler %s is %s; %s", ErrShimNotUsed, eligible[0].Name, cmp.Or(eligible[0].RuntimePath, "not set"), ShimNotUsedRemedy)
}

// CheckHandler returns nil if containers of the named handler, "" for the default one,
// can have GPUs from the NRI plugin.
func (c RunningConfig) CheckHandler(name string) error {
	name = cmp.Or(name, c.Default)
	i := slices.IndexFunc(c.Handlers, func(h containerdconfig.Handler) bool { return h.Name == name })
	switch {
	case i < 0:
		return fmt.Errorf("containerd has no runtime handler %q", name)
	case c.Handlers[i].RuntimeType == shimfile.RuntimeName: // It runs runc's shim.
		return nil
	}
	return c.Handlers[i].CheckEligible(c.OS)
}

// CheckAnyHandler returns nil if containers of at least one handler can have GPUs from the
// NRI plugin.
func (c RunningConfig) CheckAnyHandler() error {
	if slices.ContainsFunc(c.Handlers, func(h containerdconfig.Handler) bool { return c.CheckHandler(h.Name) == nil }) {
		return nil
	}
	return fmt.Errorf("no runtime handler of containerd can have GPUs: %s; add one of runc", containerdconfig.WhyNotEligible(c.Handlers, c.OS))
}

// ReadRunning returns the configuration of the containerd that serves a CRI socket: see
// [localgrpc.Dial]. With an error, it can return the version alone.
func ReadRunning(ctx context.Context, socket string) (RunningConfig, error) {
	connection, client, err := dial(socket)
	if err != nil {
		return RunningConfig{}, err
	}
	defer connection.Close()
	version, err := client.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return RunningConfig{}, fmt.Errorf("get containerd's version: %w", err)
	}
	running := RunningConfig{OS: runtime.GOOS, Version: version.GetRuntimeVersion(), Major: majorOf(version.GetRuntimeVersion())}
	status, err := client.Status(ctx, &cri.StatusRequest{Verbose: true})
	if err != nil {
		return running, fmt.Errorf("get containerd's CRI status: %w", err)
	}
	if running.Handlers, running.Default, err = parseStatus(status.GetInfo()["config"]); err != nil {
		return running, fmt.Errorf("read the configuration in containerd's CRI status: %w", err)
	}
	return running, nil
}

// majorOf returns the major number of a version, 0 if it has none.
func majorOf(version string) int {
	first, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	major, _ := strconv.Atoi(first)
	return major
}

func parseStatus(config string) (handlers []containerdconfig.Handler, defaultHandler string, err error) {
	if config == "" {
		return nil, "", errors.New("no configuration; is this containerd?")
	}
	var status struct {
		Containerd struct {
			DefaultRuntimeName string `json:"defaultRuntimeName"`
			Runtimes           map[string]struct {
				containerdconfig.Handler        // as 2.x names its fields
				SandboxMode              string `json:"sandboxMode"` // 1.7
				Options                  struct {
					SandboxIsolation float64
					BinaryName       string
				} `json:"options"`
			} `json:"runtimes"`
		} `json:"containerd"`
	}
	if err := json.Unmarshal([]byte(config), &status); err != nil {
		return nil, "", err
	}
	for name, r := range status.Containerd.Runtimes {
		h := r.Handler
		h.Name, h.Sandboxer = name, cmp.Or(h.Sandboxer, r.SandboxMode)
		h.SandboxIsolation, h.BinaryName = int64(r.Options.SandboxIsolation), r.Options.BinaryName
		handlers = append(handlers, h)
	}
	slices.SortFunc(handlers, func(a, b containerdconfig.Handler) int { return strings.Compare(a.Name, b.Name) })
	return handlers, status.Containerd.DefaultRuntimeName, nil
}
