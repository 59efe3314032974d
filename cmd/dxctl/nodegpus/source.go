package nodegpus

import (
	"context"
	"errors"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// OpenSource opens the source of the GPUs of a node with the policy p. hostRoot is as in [Flags].
func OpenSource(p policy.Policy, stateDir, hostRoot string) (discovery.Source, error) {
	return node.Open(node.Options{UseInventory: p.UseInventory, StateDir: stateDir, HostRoot: hostRoot, Live: true})
}

// Follow calls do immediately and after each change of source, until ctx ends or do returns an error.
func Follow(ctx context.Context, source discovery.Source, do func() error) (failed error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	changed := func() {
		if failed == nil {
			failed = do()
		}
		if failed != nil {
			stop()
		}
	}
	changed()
	if err := source.Watch(ctx, changed); ctx.Err() == nil {
		return errors.Join(err, errors.New("the watch of the GPUs ended unexpectedly"))
	}
	return failed
}
