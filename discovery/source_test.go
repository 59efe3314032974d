package discovery

import (
	"slices"
	"testing"

	"github.com/directx-nri/directx-nri/internal/policy"
)

func TestByClassIgnoresMissingLocationPaths(t *testing.T) {
	t.Parallel()
	devices := Static{
		{InstanceID: "no path", Health: Health{Reason: "it has no location path", ByPathOnly: true}},
		{InstanceID: "broken", Health: Health{Reason: "it is broken"}},
	}
	for mode, on := range map[policy.Assignment]bool{policy.AssignByClass: true, policy.AssignByPath: false} {
		source := ForPolicy(devices, policy.Policy{Assignment: mode})
		listed, err := source.Devices(t.Context())
		if err != nil || listed[0].Health.OK() != on || listed[1].Health.OK() {
			t.Errorf("%s: %+v, %v", mode, listed, err)
		}
		found, err := source.Find(t.Context(), []string{"NO PATH"})
		if err != nil || len(found) != 1 || found[0].Health.OK() != on {
			t.Errorf("%s: found %+v, %v", mode, found, err)
		}
	}
}

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
