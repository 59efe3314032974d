package decision

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/ocispec"
)

func (d *Decider) decidePod(ctx context.Context, request Request) (*Outcome, error) {
	container := request.Container
	if request.forged != "" {
		return nil, fmt.Errorf("%s: %w", request.forged, errForged)
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
	records, err := d.findRecords(request.allocations, holderOf(container))
	if err != nil {
		return nil, err
	}
	devices, err := d.recordedDevices(ctx, records)
	if err != nil {
		return nil, err
	}
	outcome, err := d.buildOutcome(request, devices)
	if err != nil {
		return nil, err
	}
	removeInterlock(container.OS, &outcome.Edits)
	return outcome, nil
}

// holderOf returns c, of a pod, as the holder of an allocation.
func holderOf(c Container) allocation.Holder {
	return allocation.Holder{PodUID: c.Pod.UID, Container: c.Name, PodNamespace: c.Pod.Namespace, PodName: c.Pod.Name}
}

// findRecords returns the records of allocations, none of which belongs to another holder. Nothing is
// bound before all are checked, so that a refused container takes nothing from another one.
func (d *Decider) findRecords(allocations []presented, holder allocation.Holder) (records []allocation.Record, err error) {
	for _, a := range allocations {
		if a.err != nil {
			return nil, fmt.Errorf("%s: %w", a.key, a.err)
		}
		record, err := d.Store.GetFor(a.id, holder)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", a.key, err)
		}
		records = append(records, record)
	}
	return records, nil
}

func (d *Decider) recordedDevices(ctx context.Context, records []allocation.Record) ([]discovery.Device, error) {
	var resources []string
	var replicas []allocation.Replica
	for _, record := range records {
		resources, replicas = append(resources, record.Resource), append(replicas, record.Replicas...)
	}
	devices, err := discovery.Allocated(ctx, d.Source, replicas)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(resources, ", "), err)
	}
	return devices, nil
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
