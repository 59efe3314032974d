// Package allocationtest writes allocation records for tests.
package allocationtest

import (
	"context"
	"testing"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// Open returns the recorder of a directory until the test ends.
func Open(t testing.TB, dir string) *allocation.Recorder {
	t.Helper()
	recorder, err := allocation.OpenRecorder(context.Background(), dir, testutil.Quiet())
	testutil.NoError(t, err)
	t.Cleanup(func() { _ = recorder.Close() })
	return recorder
}

// Bind binds a record to holder.
func Bind(t testing.TB, dir string, id allocation.ID, holder allocation.Holder) {
	t.Helper()
	store := allocation.OpenStore(dir)
	entry, err := store.GetFor(id, holder)
	testutil.NoError(t, err)
	testutil.NoError(t, store.Bind(entry, holder))
}

// Record writes the record of one container's GPUs, given by their instance IDs, and returns
// its ID.
func Record(t testing.TB, dir, resource string, instanceIDs ...string) allocation.ID {
	t.Helper()
	recorder := Open(t, dir)
	var replicas []allocation.Replica
	for i, id := range instanceIDs {
		replicas = append(replicas, allocation.Replica{ID: allocation.ReplicaID(allocation.GPUKey(id), i), InstanceID: id})
	}
	record, err := recorder.Record(context.Background(), allocation.Record{Resource: resource, Replicas: replicas})
	testutil.NoError(t, err, recorder.Close())
	return record
}
