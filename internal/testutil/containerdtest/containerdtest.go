// Package containerdtest has a test double of a node with containerd, for tests of dxctl.
package containerdtest

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/spf13/cobra"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/internal/testutil/grpctest"
	"github.com/directx-nri/directx-nri/shim/shimfile"
)

// Config is a configuration file without handlers.
const Config = "version = 2 # mine\n"

// FakeNode has a configuration file, a shim, and a test double of containerd. The double loads the
// configuration file after its restart command has created the file "restarted".
type FakeNode struct {
	Root, Config, State, Socket string
	Sandboxes                   []*cri.PodSandbox // set before the first query
}

// containerd is a test double of containerd's CRI server. Its status has the content that the
// configuration file had at the last restart.
type containerd struct {
	cri.UnimplementedRuntimeServiceServer
	node *FakeNode

	mu     sync.Mutex
	loaded []byte
}

func (c *containerd) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if os.Remove(c.node.restarted()) == nil {
		c.loaded, _ = os.ReadFile(c.node.Config)
	}
	f, err := containerdconfig.Read(c.loaded, containerdconfig.Release{OS: "linux"})
	if err != nil {
		return nil, err
	}
	runtimes := map[string]any{}
	for _, h := range f.Handlers {
		runtimes[h.Name] = h
	}
	config, err := json.Marshal(map[string]any{"containerd": map[string]any{"runtimes": runtimes}})
	return &cri.StatusResponse{Info: map[string]string{"config": string(config)}}, err
}

func (*containerd) Version(context.Context, *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeVersion: "v1.7.35"}, nil
}

func (c *containerd) ListPodSandbox(context.Context, *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	return &cri.ListPodSandboxResponse{Items: c.node.Sandboxes}, nil
}

// New returns a node whose containerd runs with config; "" stands for no file.
func New(t *testing.T, config string) *FakeNode {
	t.Helper()
	root := t.TempDir()
	n := &FakeNode{
		Root: root, Config: filepath.Join(root, "config.toml"), State: filepath.Join(root, "state"), Socket: filepath.Join(root, "s"),
	}
	testutil.WriteFile(t, n.Shim(), "#!/bin/sh\necho "+shimfile.BaseName+" 1.0\n", 0o700)
	if config != "" {
		testutil.WriteFile(t, n.Config, config, 0o640)
	}
	grpctest.Serve(t, n.Socket, &cri.RuntimeService_ServiceDesc, &containerd{node: n, loaded: []byte(config)})
	return n
}

// Shim returns the path of the runtime shim.
func (n *FakeNode) Shim() string { return filepath.Join(n.Root, shimfile.FileName()) }

func (n *FakeNode) restarted() string { return filepath.Join(n.Root, "restarted") }

// Restart returns the flags that make a command restart containerd.
func (n *FakeNode) Restart() []string {
	return []string{"--restart", "--restart-command", "touch " + n.restarted()}
}

// Flags returns the flags that select the node's containerd.
func (n *FakeNode) Flags() []string {
	return []string{"--containerd-config", n.Config, "--cri-socket", n.Socket, "--state-dir", n.State}
}

// Read returns the configuration file, "" if there is none.
func (n *FakeNode) Read(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(n.Config)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

// Names returns the paths of the node's files.
func (n *FakeNode) Names(t *testing.T) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(n.Root, "*"))
	testutil.NoError(t, err)
	return names
}

// Run runs a command with args.
func Run(t *testing.T, command *cobra.Command, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	command.SilenceErrors, command.SilenceUsage = true, true
	var out, errs bytes.Buffer
	command.SetOut(&out)
	command.SetErr(&errs)
	command.SetArgs(args)
	err = command.ExecuteContext(t.Context())
	return out.String(), errs.String(), err
}
