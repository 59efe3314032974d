package decision

import (
	"fmt"
	"io"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/capabilities"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/ocispec"
)

// NewDecider returns the decider of this node with the policy p, for containers
// of the operating system os. stateDir has the records and the compiled inventory. An
// error has its remedy.
func NewDecider(stateDir string, p policy.Policy, os ocispec.OS, files Files, log logrus.FieldLogger) (*Decider, error) {
	quiet := logrus.New() // Everything that matters is in the errors too.
	quiet.SetOutput(io.Discard)
	source, err := node.Open(node.Options{Inventory: p.Inventory, StateDir: stateDir, Log: quiet})
	if err != nil {
		return nil, explain("", fmt.Errorf("%w: %w", errUnknownGPUs, err))
	}
	return &Decider{
		Source: source, Store: allocation.OpenStore(paths.Allocations(stateDir)), Files: files, Log: log,
		Policy: capabilities.InForce(p, string(os)),
	}, nil
}
