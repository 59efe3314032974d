package advertiser

import (
	"fmt"
	"path/filepath"
	"testing"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// BenchmarkSocket measures calls over the real socket of a running advertiser,
// as the kubelet makes them.
func BenchmarkSocket(b *testing.B) {
	for _, size := range []struct{ gpus, replicas int }{{2, 4}, {64, 256}} {
		_, ids := bigPool(size.gpus, size.replicas)
		name := fmt.Sprintf("%dx%d", size.gpus, size.replicas)
		b.Run("AllocateInMemory/"+name, func(b *testing.B) {
			c := benchClient(b, size.gpus, size.replicas, &memoryRecorder{})
			benchAllocate(b, c, ids)
		})
		b.Run("Allocate/"+name, func(b *testing.B) {
			recorder, err := allocation.OpenRecorder(b.Context(), filepath.Join(testutil.ShortDir(b), "records"), testutil.Quiet())
			if err != nil {
				b.Fatal(err)
			}
			benchAllocate(b, benchClient(b, size.gpus, size.replicas, recorder), ids)
		})
		b.Run("GetPreferredAllocation/"+name, func(b *testing.B) {
			c := benchClient(b, size.gpus, size.replicas, &memoryRecorder{})
			request := &v1beta1.PreferredAllocationRequest{ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: ids, AllocationSize: 2}}}
			for b.Loop() {
				if _, err := c.GetPreferredAllocation(b.Context(), request); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func benchClient(b *testing.B, gpus, replicas int, recorder Recorder) v1beta1.DevicePluginClient {
	b.Helper()
	dir := testutil.ShortDir(b)
	k := startKubelet(b, dir)
	config := testConfig(b, dir, newSource(bigNode(gpus)...))
	config.Resources, config.Recorder = twoKinds(replicas), recorder
	runWith(b, config, defaultTiming())
	return k.client(displayResource)
}

func benchAllocate(b *testing.B, c v1beta1.DevicePluginClient, ids []string) {
	b.Helper()
	n := 0
	for b.Loop() {
		if _, err := c.Allocate(b.Context(), allocateRequest([]string{ids[n%len(ids)]})); err != nil {
			b.Fatal(err)
		}
		n++
	}
}
