package decision

import (
	"context"
	"errors"
	"slices"
	"testing"

	"directx-nri/discovery"
	"directx-nri/ocispec"
)

// indexed looks devices up by index.
type indexed struct{ fixed }

func (s indexed) At(indices []int) (devices []discovery.Device, ok bool, err error) {
	for _, i := range indices {
		if i >= len(s.devices) {
			return nil, false, nil
		}
		devices = append(devices, s.devices[i])
	}
	return devices, true, nil
}

// whole fails if the whole list is read.
type whole struct{ indexed }

func (whole) Devices(context.Context) ([]discovery.Device, error) {
	return nil, errors.New("the whole list is read")
}

func TestStandaloneRequestsByIndex(t *testing.T) {
	t.Parallel()
	for request, want := range map[string][]string{"0": {path0}, "1, 0,1": {path1, path0}} {
		d := decider(t, fixed{})
		d.Source = whole{indexed{fixed{devices: testDevices()}}}
		c := ask(request)
		c.OS = ocispec.Windows
		edits, _, err := d.Decide(t.Context(), c)
		if got, _ := gpusOf(edits); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", request, got, err)
		}
	}
	// Errors list all GPUs.
	for request, want := range map[string]error{"2": ErrDeviceFailed, "7": errNoSuchGPU} {
		d := decider(t, fixed{})
		d.Source = indexed{fixed{devices: testDevices()}}
		c := ask(request)
		c.OS = ocispec.Windows
		if _, _, err := d.Decide(t.Context(), c); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", request, err, want)
		}
	}
}
