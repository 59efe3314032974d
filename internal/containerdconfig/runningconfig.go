package containerdconfig

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/internal/shimfile"
)

// RunningConfig is the configuration that a running containerd has loaded.
type RunningConfig struct {
	// Handlers are sorted by name.
	Handlers []Handler
	// Default is the name of the handler of pods without a runtime class.
	Default string
	// OS is containerd's operating system, as in runtime.GOOS.
	OS string
	// Version is containerd's version, such as "v1.7.35", and Major its first number, or 0.
	Version string
	Major   int
}

// shimServes reports whether the runtime shim adds GPUs to the containers of h.
func (c RunningConfig) shimServes(h Handler) bool {
	return h.UsesShim() && h.CheckEligible(c.OS) == nil && !c.bypassesShim()
}

// bypassesShim reports whether containerd starts a pod's containers without
// running a shim binary. containerd 2 does so if the shim of the sandbox has
// version 3 of the shim protocol. runc's shim has it, and runhcs does not.
// https://github.com/containerd/containerd/blob/v2.4.2/core/runtime/v2/shim_manager.go
func (c RunningConfig) bypassesShim() bool { return c.OS == "linux" && c.Major >= 2 }

// ErrShimNotUsed is the error of a node on which no runtime handler that can have
// GPUs uses the runtime shim.
var ErrShimNotUsed = errors.New("containerd does not start containers with " + shimfile.BaseName)

// ShimNotUsedRemedy is the remedy for [ErrShimNotUsed].
const ShimNotUsedRemedy = "run 'dxctl runtime configure --restart'"

// CheckShimUsed returns an error that matches [ErrShimNotUsed] unless at least one handler starts
// containers with the runtime shim, and none starts containers without their GPUs.
func (c RunningConfig) CheckShimUsed() error {
	if i := slices.IndexFunc(c.Handlers, Handler.IgnoresDevices); i >= 0 {
		h := c.Handlers[i]
		return fmt.Errorf("%w: the runtime handler %s runs %s, which starts containers without their GPUs; remove that handler from containerd's configuration", ErrShimNotUsed, h.Name, cmp.Or(h.RuntimePath, h.RuntimeType))
	}
	if c.bypassesShim() {
		return fmt.Errorf("%w: containerd %d on Linux runs the shim for a pod's sandbox only; use the NRI plugin, with --served-by nri", ErrShimNotUsed, c.Major)
	}
	if slices.ContainsFunc(c.Handlers, c.shimServes) {
		return nil
	}
	i := slices.IndexFunc(c.Handlers, func(h Handler) bool { return h.CheckEligible(c.OS) == nil })
	if i < 0 {
		return fmt.Errorf("%w: no runtime handler can have GPUs: %s; add one to containerd's configuration, or %s", ErrShimNotUsed, whyNotEligible(c.Handlers, c.OS), ShimNotUsedRemedy)
	}
	h := c.Handlers[i]
	return fmt.Errorf("%w: runtime_path of the runtime handler %s is %s; %s", ErrShimNotUsed, h.Name, cmp.Or(h.RuntimePath, "not set"), ShimNotUsedRemedy)
}

// CheckHandler returns nil if containers of the named handler, "" for the default one,
// can have GPUs from the NRI plugin.
func (c RunningConfig) CheckHandler(name string) error {
	name = cmp.Or(name, c.Default)
	i := slices.IndexFunc(c.Handlers, func(h Handler) bool { return h.Name == name })
	switch {
	case i < 0:
		return fmt.Errorf("containerd has no runtime handler %q", name)
	case c.Handlers[i].RuntimeType == shimType:
		return nil
	}
	return c.Handlers[i].CheckEligible(c.OS)
}

// CheckAnyHandler returns nil if containers of at least one handler can have GPUs from the
// NRI plugin.
func (c RunningConfig) CheckAnyHandler() error {
	if slices.ContainsFunc(c.Handlers, func(h Handler) bool { return c.CheckHandler(h.Name) == nil }) {
		return nil
	}
	return fmt.Errorf("no runtime handler of containerd can have GPUs: %s; add one of runc", whyNotEligible(c.Handlers, c.OS))
}

// dial returns a connection to containerd's CRI socket, and a client that uses it.
func dial(socket string) (*grpc.ClientConn, cri.RuntimeServiceClient, error) {
	connection, err := localgrpc.Dial(socket)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to containerd: %w", err)
	}
	return connection, cri.NewRuntimeServiceClient(connection), nil
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
	running := RunningConfig{OS: runtime.GOOS, Version: version.GetRuntimeVersion(), Major: Major(version.GetRuntimeVersion())}
	status, err := client.Status(ctx, &cri.StatusRequest{Verbose: true})
	if err != nil {
		return running, fmt.Errorf("get containerd's CRI status: %w", err)
	}
	if running.Handlers, running.Default, err = parseStatus(status.GetInfo()["config"]); err != nil {
		return running, fmt.Errorf("read the configuration in containerd's CRI status: %w", err)
	}
	return running, nil
}

// Major returns the major number of a version, 0 if it has none.
func Major(version string) int {
	var major int
	if _, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.", &major); err != nil {
		return 0
	}
	return major
}

func parseStatus(config string) (handlers []Handler, defaultHandler string, err error) {
	if config == "" {
		return nil, "", errors.New("no configuration; is this containerd?")
	}
	var status struct {
		Containerd struct {
			DefaultRuntimeName string `json:"defaultRuntimeName"`
			Runtimes           map[string]struct {
				Handler            // as 2.x names its fields
				SandboxMode string `json:"sandboxMode"` // 1.7
				Options     struct {
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
	slices.SortFunc(handlers, func(a, b Handler) int { return strings.Compare(a.Name, b.Name) })
	return handlers, status.Containerd.DefaultRuntimeName, nil
}

const (
	// maxSynchronizeBytes limits the message by which NRI sends all pods and containers to a plugin.
	// It splits a larger one, and can panic (v0.8.0 to v0.12.5): recalcObjsPerSyncMsg in
	// https://github.com/containerd/nri/blob/v0.12.5/pkg/adaptation/plugin.go
	maxSynchronizeBytes = 4 << 20
	// extraBytes is enough for the fields of a pod or container that only NRI's message has.
	extraBytes = 1 << 10
)

// CheckSynchronize returns an error if containerd may have more pods and containers than it
// can send to an NRI plugin in one message.
func CheckSynchronize(ctx context.Context, socket string) error {
	connection, client, err := dial(socket)
	if err != nil {
		return err
	}
	defer connection.Close()
	pods, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return fmt.Errorf("list containerd's pods: %w", err)
	}
	containers, err := client.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return fmt.Errorf("list containerd's containers: %w", err)
	}
	total, byPod := 0, map[string]int{}
	add := func(pod string, bytes int) { total, byPod[pod] = total+bytes+extraBytes, byPod[pod]+bytes+extraBytes }
	for _, p := range pods.GetItems() {
		add(p.GetId(), proto.Size(p))
	}
	for _, c := range containers.GetContainers() {
		if s := c.GetState(); s != cri.ContainerState_CONTAINER_CREATED && s != cri.ContainerState_CONTAINER_RUNNING {
			continue // NRI does not send it.
		}
		answer, err := client.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.GetId(), Verbose: true})
		if status.Code(err) == codes.NotFound {
			continue // It was removed after the list was made.
		}
		var info struct {
			Spec struct {
				Process, Mounts, Hooks, Annotations json.RawMessage
				Linux                               struct{ Devices, Resources json.RawMessage }
			} `json:"runtimeSpec"`
		}
		if err == nil {
			err = json.Unmarshal([]byte(answer.GetInfo()["info"]), &info)
		}
		if err != nil {
			return fmt.Errorf("get the size of container %s: %w", c.GetId(), err)
		}
		s := info.Spec
		add(c.GetPodSandboxId(), proto.Size(c)+len(s.Process)+len(s.Mounts)+len(s.Hooks)+len(s.Annotations)+len(s.Linux.Devices)+len(s.Linux.Resources))
	}
	if total <= maxSynchronizeBytes {
		return nil
	}
	largest := &cri.PodSandbox{}
	for _, p := range pods.GetItems() {
		if byPod[p.GetId()] > byPod[largest.GetId()] {
			largest = p
		}
	}
	return fmt.Errorf("the pods and containers of this node have %d KiB of environment variables, annotations and the like, and containerd can crash when it sends more than %d KiB to a plugin; "+
		"delete the largest, such as pod %s/%s with %d KiB", total>>10, maxSynchronizeBytes>>10, largest.GetMetadata().GetNamespace(), largest.GetMetadata().GetName(), byPod[largest.GetId()]>>10)
}

// Pod is a pod that containerd has a sandbox of.
type Pod struct {
	Namespace, Name string
	// Ready reports whether one of its sandboxes is ready.
	Ready bool
}

// Pods returns the pods that containerd has a sandbox of, by UID.
func Pods(ctx context.Context, socket string) (map[string]Pod, error) {
	connection, client, err := dial(socket)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	list, err := client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containerd's pods: %w", err)
	}
	pods := map[string]Pod{}
	for _, item := range list.GetItems() {
		metadata := item.GetMetadata()
		ready := pods[metadata.GetUid()].Ready || item.GetState() == cri.PodSandboxState_SANDBOX_READY
		pods[metadata.GetUid()] = Pod{metadata.GetNamespace(), metadata.GetName(), ready}
	}
	return pods, nil
}
