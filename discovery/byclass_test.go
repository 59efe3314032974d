package discovery

import (
	"context"
	"testing"
)

// listing answers with devices, and finds them too.
type listing struct{ devices []Device }

func (l listing) Devices(context.Context) ([]Device, error) {
	return append([]Device(nil), l.devices...), nil
}

func (l listing) Watch(context.Context, func()) error { return nil }

func (l listing) Find(ctx context.Context, _ []string) ([]Device, error) { return l.Devices(ctx) }

// plainSource is a source that finds nothing by itself.
type plainSource struct{ Source }

func TestByClassOverlooksMissingLocationPaths(t *testing.T) {
	t.Parallel()
	devices := []Device{
		{InstanceID: "no path", Health: Health{Reason: "it has no location path", ByPathOnly: true}},
		{InstanceID: "broken", Health: Health{Reason: "it is broken"}},
	}
	for _, on := range []bool{true, false} {
		source := ByClass(listing{devices}, func() bool { return on })
		listed, err := source.Devices(t.Context())
		if err != nil || listed[0].Health.OK() != on || listed[1].Health.OK() {
			t.Errorf("by class %t: %+v, %v", on, listed, err)
		}
		finder, ok := source.(Finder)
		if !ok {
			t.Fatal("it is no finder any more")
		}
		found, err := finder.Find(t.Context(), nil)
		if err != nil || found[0].Health.OK() != on || found[1].Health.OK() {
			t.Errorf("by class %t: found %+v, %v", on, found, err)
		}
	}
	if _, ok := ByClass(plainSource{listing{devices}}, func() bool { return true }).(Finder); ok {
		t.Error("it became a finder")
	}
}

func TestPCIPlace(t *testing.T) {
	t.Parallel()
	bus, address := uint32(0x21B), uint32(3<<16|1)
	segment, number, device, function, ok := Device{BusNumber: &bus, Address: &address}.PCIPlace()
	if !ok || segment != 2 || number != 0x1B || device != 3 || function != 1 {
		t.Errorf("%X:%X:%X.%X, %t", segment, number, device, function, ok)
	}
	for _, d := range []Device{{}, {BusNumber: &bus}, {Address: &address}} {
		if _, _, _, _, ok := d.PCIPlace(); ok {
			t.Errorf("%+v has a place", d)
		}
	}
}
