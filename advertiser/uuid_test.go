package advertiser

import (
	"testing"

	"directx-nri/discovery"
)

// What finds single devices at a container's start does not ask their drivers, so
// that the allocation has to say it.
func TestAllocationsKeepUUIDs(t *testing.T) {
	t.Parallel()
	const uuid = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
	known := discovery.Device{InstanceID: "A", LocationPath: "PCIROOT(0)#PCI(1B00)", SupportsDisplay: true, UUID: uuid}
	unknown := discovery.Device{InstanceID: "B", LocationPath: "PCIROOT(0)#PCI(1C00)", SupportsDisplay: true}
	p := poolOf(1, known, unknown)
	replicas, err := p.validate([]string{"A::0", "B::0"})
	if err != nil || replicas[0].UUID != uuid || replicas[1].UUID != "" {
		t.Errorf("%+v, %v", replicas, err)
	}
}
