package nodegpus

import (
	"context"
	"reflect"
	"slices"
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

// Follow calls do with the list of source now, after each change of the list, and with each error of
// listing, until ctx ends or do returns an error.
func Follow(ctx context.Context, source discovery.Source, do func(devices []discovery.Device, err error) error) error {
	var before []discovery.Device
	for listed := false; ; {
		devices, err := source.Devices(ctx)
		if err != nil || !listed || !reflect.DeepEqual(before, devices) {
			before, listed = devices, err == nil
			err = do(slices.Clone(devices), err)
		}
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
