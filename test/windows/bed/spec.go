//go:build e2e && windows

package bed

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// Pod is a pod as in a request to the CRI.
type Pod struct {
	// Sandbox is the ID of the sandbox.
	Sandbox         string
	Namespace, Name string
	UID             string
	HostProcess     bool
}

// NewPod returns a pod with that sandbox ID.
func NewPod(sandbox string) Pod {
	return Pod{Sandbox: sandbox, Namespace: "default", Name: "pod-" + sandbox, UID: "uid-" + sandbox}
}

// Forever returns a command line that runs until it is killed. The double of the Host
// Compute Service has one; any other ends immediately (../doubles/vmcompute.c).
func (m *Machine) Forever() []string {
	if m.Doubled {
		return []string{"forever"}
	}
	return []string{"ping", "-t", "127.0.0.1"}
}

// Standalone returns the spec of a container outside Kubernetes.
func (n *Node) Standalone(t testing.TB, id string) *specs.Spec {
	t.Helper()
	return &specs.Spec{
		Version:  specs.Version,
		Process:  &specs.Process{Args: n.Forever(), Cwd: `C:\`, User: specs.User{Username: "ContainerUser"}, Env: []string{"PATH=C:\\Windows"}},
		Root:     &specs.Root{},
		Hostname: "host",
		Windows:  &specs.Windows{LayerFolders: n.layers(t, id)},
	}
}

// Visible returns the spec of a standalone container that requests GPUs.
func (n *Node) Visible(t testing.TB, id, request string) *specs.Spec {
	t.Helper()
	spec := n.Standalone(t, id)
	spec.Process.Env = append(spec.Process.Env, "DIRECTX_VISIBLE_DEVICES="+request)
	return spec
}

// layers creates a container's layers and returns their paths.
func (n *Node) layers(t testing.TB, id string) []string {
	t.Helper()
	if !n.Doubled {
		return n.snapshot(t, id)
	}
	dirs := []string{n.Path("base"), n.Path("layer-" + id)}
	for _, dir := range dirs {
		testutil.NoError(t, os.MkdirAll(dir, 0o700))
	}
	return dirs
}

// SandboxSpec returns the spec of a pod's sandbox as containerd 1.7.35 creates it:
// sandboxContainerSpec in pkg/cri/server/sandbox_run_windows.go.
func (n *Node) SandboxSpec(t testing.TB, p Pod) *specs.Spec {
	t.Helper()
	shares := uint16(2) // DefaultSandboxCPUshares of pkg/cri/opts
	s := n.podSpec(t, p, p.Sandbox)
	s.Process.Args = append([]string{`\pause.exe`}, n.Forever()...)
	s.Windows.Resources = &specs.WindowsResources{CPU: &specs.WindowsCPUResources{Shares: &shares}}
	s.Annotations["io.kubernetes.cri.sandbox-log-directory"] = `C:\var\log\pods\` + p.UID
	s.Annotations["io.kubernetes.cri.container-type"] = "sandbox"
	return s
}

// ContainerSpec returns the spec of a pod's container: containerSpec in
// pkg/cri/server/container_create_windows.go.
func (n *Node) ContainerSpec(t testing.TB, p Pod, id, name string) *specs.Spec {
	t.Helper()
	s := n.podSpec(t, p, id)
	memory := uint64(512 << 20)
	s.Windows.Resources = &specs.WindowsResources{Memory: &specs.WindowsMemoryResources{Limit: &memory}}
	s.Annotations["io.kubernetes.cri.container-name"] = name
	s.Annotations["io.kubernetes.cri.image-name"] = "registry.example/app:1"
	s.Annotations["io.kubernetes.cri.container-type"] = "container"
	return s
}

// podSpec returns what both have: no root, the sandbox's network namespace, and the
// annotations of annotations.DefaultCRIAnnotations.
func (n *Node) podSpec(t testing.TB, p Pod, id string) *specs.Spec {
	t.Helper()
	s := n.Standalone(t, id)
	s.Root = nil
	s.Hostname = p.Name
	if n.Doubled { // The CRI plugin creates one on Windows itself.
		s.Windows.Network = &specs.WindowsNetwork{NetworkNamespace: "77777777-7777-7777-7777-777777777777"}
	}
	s.Annotations = map[string]string{
		"microsoft.com/hostprocess-container": "false",
		"io.kubernetes.cri.sandbox-id":        p.Sandbox,
		"io.kubernetes.cri.sandbox-namespace": p.Namespace,
		"io.kubernetes.cri.sandbox-uid":       p.UID,
		"io.kubernetes.cri.sandbox-name":      p.Name,
	}
	if p.HostProcess {
		s.Annotations["microsoft.com/hostprocess-container"] = "true"
		s.Process.User.Username = `NT AUTHORITY\SYSTEM`
	}
	return s
}

// Allocate adds the advertiser's answer, token and interlock, to a container's spec
// as the CRI plugin does.
func Allocate(s *specs.Spec, resource string, token allocation.Token) {
	Interlock(s)
	s.Process.Env = append(s.Process.Env, allocation.EnvKey(resource)+"="+string(token))
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[allocation.AnnotationKey(resource)] = string(token)
}

// Interlock adds the interlock alone.
func Interlock(s *specs.Spec) {
	s.Windows.Devices = append(s.Windows.Devices, specs.WindowsDevice{ID: allocation.InterlockDeviceID, IDType: allocation.InterlockDeviceType})
}

// JSON returns v as JSON.
func JSON(t testing.TB, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	testutil.NoError(t, err)
	return data
}
