package criclient

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/errlog"
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
	running := RunningConfig{OS: runtime.GOOS, Version: version.GetRuntimeVersion()}
	running.Major, _, _ = ParseVersion(running.Version)
	status, err := client.Status(ctx, &cri.StatusRequest{Verbose: true})
	if err != nil {
		return running, fmt.Errorf("get containerd's CRI status: %w", err)
	}
	if running.Handlers, running.Default, err = parseStatus(status.GetInfo()["config"]); err != nil {
		return running, fmt.Errorf("read the configuration in containerd's CRI status: %w", err)
	}
	return running, nil
}

// ParseVersion returns the first two numbers of containerd's version. If ok is false, it does not have
// both, and major is 0 unless it has the first.
func ParseVersion(version string) (major, minor int, ok bool) {
	_, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor)
	return major, minor, err == nil
}

// CheckRunsShim returns an error, with a remedy, if a containerd of this version runs a shim binary for a
// pod's sandbox only. 2.x starts a pod's containers in the process of the sandbox's shim if that shim
// has version 3 of the shim protocol, as runc's has. 2.0.0 to 2.0.5 do so with every shim.
// https://github.com/containerd/containerd/blob/v2.0.5/core/runtime/v2/shim_manager.go,
// https://github.com/containerd/containerd/blob/v2.4.2/core/runtime/v2/shim_manager.go
func CheckRunsShim(os, version string) error {
	major, _, _ := ParseVersion(version)
	patch := math.MaxInt                                                  // of 2.0
	_, _ = fmt.Sscanf(strings.TrimPrefix(version, "v"), "2.0.%d", &patch) // It fails for other versions.
	err := fmt.Errorf("containerd %s on %s runs the shim for a pod's sandbox only", version, os)
	switch {
	case os == "linux" && major >= 2:
		return errlog.WithRemedy(err, "use the NRI plugin, with --injection nri")
	case os == "windows" && patch < 6:
		return errlog.WithRemedy(err, "upgrade containerd to 2.0.6 or newer, or set injection: kubelet")
	}
	return nil
}

func parseStatus(config string) (handlers []containerdconfig.Handler, defaultHandler string, err error) {
	if config == "" {
		return nil, "", errors.New("no configuration; is this containerd?")
	}
	var status struct {
		Containerd struct {
			DefaultRuntimeName string `json:"defaultRuntimeName"`
			Runtimes           map[string]struct {
				containerdconfig.Handler        // of 2.x
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
