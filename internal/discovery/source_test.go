package discovery

import (
	"slices"
	"testing"
)

func TestWithIDs(t *testing.T) {
	t.Parallel()
	devices := []Device{{InstanceID: "a"}, {InstanceID: "b"}, {InstanceID: "c"}}
	var got []string
	for _, d := range WithIDs(devices, []string{"C", "A", "d"}) {
		got = append(got, d.InstanceID)
	}
	if !slices.Equal(got, []string{"a", "c"}) || devices[1].InstanceID != "b" {
		t.Errorf("%q of %v", got, devices)
	}
}
