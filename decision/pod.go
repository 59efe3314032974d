package decision

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/ocispec"
)

// decidePod checks all records before the caller binds one, so that a refused container takes nothing from
// another one.
func (d *Decider) decidePod(ctx context.Context, request Request) (*Outcome, error) {
	container := request.Container
	if len(request.forged) > 0 {
		return nil, fmt.Errorf("%s: %w", request.forged[0], errForged)
	}
	if len(request.allocations) == 0 {
		return nil, errNoAllocation
	}
	if container.HyperV {
		return nil, errHyperV
	}
	if container.Pod.UID == "" || container.Name == "" {
		return nil, errors.New("the container runtime reports no pod UID or container name, so no allocation can be bound to the container")
	}
	var records []allocation.Entry
	var replicas []allocation.Replica
	for _, key := range request.allocations {
		var record allocation.Entry
		id, err := allocation.ParseID(container.Annotations[key])
		if err == nil {
			record, err = d.Store.GetFor(id, holderOf(container))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		records, replicas = append(records, record), append(replicas, record.Replicas...)
	}
	devices, err := discovery.Allocated(ctx, d.Source, replicas)
	if err != nil {
		return nil, err
	}
	outcome, err := d.buildOutcome(request, devices)
	if err != nil {
		return nil, err
	}
	outcome.records = records
	removeInterlock(container.OS, &outcome.Edits)
	return outcome, nil
}

// holderOf returns c, of a pod, as the holder of an allocation.
func holderOf(c Container) allocation.Holder {
	return allocation.Holder{PodUID: c.Pod.UID, Container: c.Name, PodNamespace: c.Pod.Namespace, PodName: c.Pod.Name}
}

// removeInterlock makes edits remove the interlock of the advertiser's answer, so
// that the runtime starts the container.
func removeInterlock(containerOS string, edits *ocispec.Edits) {
	if containerOS == "windows" {
		edits.RemoveWindowsDevices = []specs.WindowsDevice{{ID: allocation.InterlockDeviceID, IDType: allocation.InterlockDeviceType}}
	} else {
		edits.RemoveMounts = []string{allocation.InterlockMount}
	}
}
