package decision

import (
	"context"
	"io"

	"github.com/sirupsen/logrus"

	"directx-nri/discovery"
	"directx-nri/discovery/node"
	"directx-nri/internal/allocation"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/paths"
	"directx-nri/internal/policy"
	"directx-nri/ocispec"
)

// NewDecider returns the decider of this node with the policy p, for containers
// of the operating system os. stateDir has the records and the compiled inventory.
func NewDecider(stateDir string, p policy.Policy, os ocispec.OS, files Files, log logrus.FieldLogger) *Decider {
	assignment := capabilities.Resolve(p.Assignment, string(os), capabilities.Build())
	return &Decider{
		Source: openSource(stateDir, p),
		Store:  allocation.OpenStore(paths.Allocations(stateDir)),
		Files:  files,
		Log:    log,
		Policy: PolicyOf(p, assignment.ByClass()),
	}
}

func openSource(stateDir string, p policy.Policy) discovery.Source {
	quiet := logrus.New() // Everything that matters is in the errors too.
	quiet.SetOutput(io.Discard)
	source, err := node.Open(node.Options{Inventory: p.Inventory, StateDir: stateDir, Log: quiet})
	if err != nil {
		return failedSource{err}
	}
	return source
}

// failedSource is the source of a node whose GPUs are unknown.
type failedSource struct{ err error }

func (s failedSource) Devices(context.Context) ([]discovery.Device, error)        { return nil, s.err }
func (s failedSource) Find(context.Context, []string) ([]discovery.Device, error) { return nil, s.err }

func (s failedSource) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}
