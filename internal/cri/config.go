package cri

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"syscall"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// Config is the configuration that a running containerd has loaded.
type Config struct {
	// Handlers are sorted by name.
	Handlers []Handler
	// Default is the name of the handler of pods without a runtime class.
	Default string
	// Version is containerd's version, such as "v1.7.35".
	Version string
}

// Handler is a CRI runtime handler. The tags are the names in the CRI status of containerd 2.
type Handler struct {
	Name        string `json:"-"`
	RuntimeType string `json:"runtimeType"`
	RuntimePath string `json:"runtimePath"`
	// Sandboxer is sandboxer of containerd 2.x or sandbox_mode of 1.7, "" for the default.
	Sandboxer string `json:"sandboxer"`
	// SandboxMode is the name of Sandboxer in 1.7.
	SandboxMode string  `json:"sandboxMode"`
	Options     Options `json:"options"`
}

// Options are those of runhcs and of runc's shim.
type Options struct {
	// SandboxIsolation of runhcs is 0 for process isolation, and 1 for Hyper-V.
	SandboxIsolation float64
	// BinaryName of runc's shim is the program that it runs in place of runc.
	BinaryName string
}

// ReadConfig returns the configuration of the containerd that serves a CRI socket: see
// [localgrpc.Dial]. With an error, it can return the version alone.
func ReadConfig(ctx context.Context, socket string) (Config, error) {
	connection, client, err := dial(socket)
	if err != nil {
		return Config{}, err
	}
	defer connection.Close()
	version, err := client.Version(ctx, &runtime.VersionRequest{})
	if err != nil {
		return Config{}, fmt.Errorf("get containerd's version: %w", err)
	}
	c := Config{Version: version.GetRuntimeVersion()}
	status, err := client.Status(ctx, &runtime.StatusRequest{Verbose: true})
	if err != nil {
		return c, fmt.Errorf("get containerd's CRI status: %w", err)
	}
	if c.Handlers, c.Default, err = parseStatus(status.GetInfo()["config"]); err != nil {
		return c, fmt.Errorf("read the configuration in containerd's CRI status: %w", err)
	}
	return c, nil
}

func parseStatus(config string) (handlers []Handler, defaultHandler string, err error) {
	if config == "" {
		return nil, "", errors.New("no configuration; is this containerd?")
	}
	var status struct {
		Containerd struct {
			DefaultRuntimeName string             `json:"defaultRuntimeName"`
			Runtimes           map[string]Handler `json:"runtimes"`
		} `json:"containerd"`
	}
	if err := json.Unmarshal([]byte(config), &status); err != nil {
		return nil, "", err
	}
	for name, h := range status.Containerd.Runtimes {
		h.Name, h.Sandboxer = name, cmp.Or(h.Sandboxer, h.SandboxMode)
		handlers = append(handlers, h)
	}
	slices.SortFunc(handlers, func(a, b Handler) int { return strings.Compare(a.Name, b.Name) })
	return handlers, status.Containerd.DefaultRuntimeName, nil
}

// BypassesShim reports whether a containerd of this version runs the shim for the sandbox of a pod only, and
// not for its containers: 2.0.0 to 2.0.5.
// https://github.com/containerd/containerd/blob/v2.0.5/core/runtime/v2/shim_manager.go,
// https://github.com/containerd/containerd/blob/v2.0.6/core/runtime/v2/shim_manager.go
func BypassesShim(version string) bool {
	patch := math.MaxInt
	_, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "2.0.%d", &patch)
	return err == nil && patch < 6
}

// ResolveInjection returns what adds GPUs to containers, for a configured value and containerd's version: with
// [policy.InjectAuto], the kubelet on Windows where containerd bypasses the shim.
func ResolveInjection(configured policy.Injection, nodeOS, version string) policy.Injection {
	switch {
	case configured != policy.InjectAuto:
		return configured
	case nodeOS != "windows":
		return policy.InjectByNRI
	case BypassesShim(version):
		return policy.InjectByKubelet
	}
	return policy.InjectByShim
}

// CheckHandler returns nil if pods of the named handler, "" for the default one, can have GPUs.
func (c Config) CheckHandler(name, nodeOS string) error {
	name = cmp.Or(name, c.Default)
	i := slices.IndexFunc(c.Handlers, func(h Handler) bool { return h.Name == name })
	if i < 0 {
		return fmt.Errorf("containerd has no runtime handler %q", name)
	}
	return c.Handlers[i].check(nodeOS)
}

// Check returns nil if pods of at least one handler can have GPUs, and no handler would start pods without their
// GPUs, in spite of the interlock.
func (c Config) Check(nodeOS string) error {
	var errs []string
	usable := false
	for _, h := range c.Handlers {
		if h.ignoresDevices() {
			return errlog.WithRemedy(fmt.Errorf("containers of the runtime handler %s would start without their GPUs: its shim ignores the devices of a container", h.Name),
				"remove it from containerd's configuration, or do not use GPUs on this node")
		}
		if err := h.check(nodeOS); err != nil {
			errs = append(errs, err.Error())
		} else {
			usable = true
		}
	}
	if !usable {
		return fmt.Errorf("no runtime handler of containerd can have GPUs: %s", cmp.Or(strings.Join(errs, "; "), "there is none"))
	}
	return nil
}

// RuntimeType returns the runtime_type of the handlers whose pods can have GPUs.
func RuntimeType(nodeOS string) string {
	if nodeOS == "windows" {
		return "io.containerd.runhcs.v1"
	}
	return "io.containerd.runc.v2"
}

// check returns nil if pods of the handler can have GPUs: on Windows those of runhcs with process isolation,
// on Linux those of runc, or of a program in place of runc that starts containers in the node's kernel. With
// a sandboxer other than podsandbox, the sandboxer starts a pod's containers, and containerd runs no shim
// binary.
// https://github.com/containerd/containerd/blob/v2.4.2/internal/cri/config/config.go,
// https://github.com/containerd/containerd/blob/v1.7.35/pkg/cri/config/config.go
func (h Handler) check(nodeOS string) error {
	runtimeType := RuntimeType(nodeOS)
	switch {
	case h.RuntimeType != runtimeType:
		return fmt.Errorf("runtime handler %s has runtime_type %q, not %s", h.Name, h.RuntimeType, runtimeType)
	case nodeOS == "windows" && h.Options.SandboxIsolation != 0:
		return fmt.Errorf("runtime handler %s has Hyper-V isolation", h.Name)
	case h.Sandboxer != "" && h.Sandboxer != "podsandbox":
		return fmt.Errorf("runtime handler %s has the sandboxer %s, not podsandbox", h.Name, h.Sandboxer)
	}
	for _, program := range []string{h.Options.BinaryName, h.RuntimePath} {
		if hasOwnKernel(program) {
			return fmt.Errorf("runtime handler %s runs %s, whose containers have their own kernel", h.Name, program)
		}
	}
	return nil
}

// hasOwnKernel reports whether the containers of a shim, or of a program in place of runc, are known to have
// their own kernel, in which the GPUs of the node do not work. Others may be wrappers of runc.
func hasOwnKernel(program string) bool {
	known := strings.Fields("crun-vm firecracker hyperlight kata krun kuasar-vmm nerdbox quark runcvm runnc runq runsc runu runx urunc") // parts of names
	return slices.ContainsFunc(known, func(name string) bool { return strings.Contains(winpath.Base(program), name) })
}

// ignoresDevices reports whether the handler's containers would start without their GPUs, in spite of the
// interlock. Microsoft's new shims for process isolation, containerd-shim-wcowprocess-v2 and
// containerd-shim-process-v2, ignore the devices of a Windows container.
// https://github.com/microsoft/hcsshim/tree/process-v2-shim/cmd/containerd-shim-wcowprocess-v2
func (h Handler) ignoresDevices() bool {
	shim := strings.ReplaceAll(winpath.Base(cmp.Or(h.RuntimePath, h.RuntimeType)), ".", "-")
	return strings.Contains(strings.ToLower(shim), "process-v2")
}

// WithNRIRemedy returns the error of connecting to containerd's NRI socket with its remedy, if containerd does not
// listen on it.
func WithNRIRemedy(err error) error {
	if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return errlog.WithRemedy(fmt.Errorf("containerd does not listen on it: %w", err), "start containerd; if it runs, its configuration disables NRI, as containerd 1.7 does by default, or has another socket_path: "+
		`set 'disable = false' and 'disable_connections = false' in [plugins."io.containerd.nri.v1.nri"] and restart containerd, or set --nri-socket to the socket_path there`)
}
