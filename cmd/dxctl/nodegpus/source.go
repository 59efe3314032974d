package nodegpus

import (
	"context"
	"time"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// OpenSource opens the source of the GPUs of a node with the policy p. hostRoot is as in [Flags].
func OpenSource(p policy.Policy, stateDir, hostRoot string) (discovery.Source, error) {
	return node.Open(node.Options{UseInventory: p.UseInventory, StateDir: stateDir, HostRoot: hostRoot, Live: true})
}

// followInterval is the interval of [Follow].
const followInterval = 5 * time.Second

// Follow calls do now and periodically, until ctx ends or do returns an error.
func Follow(ctx context.Context, do func() error) error {
	for {
		err := do()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(followInterval):
		}
	}
}
