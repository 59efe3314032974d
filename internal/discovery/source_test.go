package discovery

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/internal/policy"
)

func TestApplyPolicy(t *testing.T) {
	t.Parallel()
	devices := Static{
		{InstanceID: "no path"},
		{InstanceID: "path", LocationPath: "PCIROOT(0)"},
		{InstanceID: "device node", DeviceNodes: []DeviceNode{{Path: "/dev/dxg"}}},
		{InstanceID: "software", Software: true},
	}
	for _, test := range []struct {
		mode policy.Assignment
		os   string
		ok   bool
	}{{policy.AssignByClass, "windows", true}, {policy.AssignByPath, "windows", false}, {policy.AssignByPath, "linux", true}} {
		source, p := ApplyPolicy(devices, policy.Policy{Assignment: test.mode, DriverFiles: policy.FilesMount}, test.os)
		if p.Assignment != test.mode || p.DriverFiles != policy.FilesMount {
			t.Errorf("%+v: in force are %s and %s", test, p.Assignment, p.DriverFiles)
		}
		listed, err := source.Devices(t.Context())
		for i, d := range listed {
			if want := test.ok || i > 0; d.Health.OK() != want || !want && !strings.Contains(d.Health.Reason, "no location path") {
				t.Errorf("%+v: %+v", test, d)
			}
		}
		found, findErr := source.Find(t.Context(), []string{"NO PATH"})
		if err := errors.Join(err, findErr); err != nil || len(found) != 1 || found[0].Health.OK() != test.ok {
			t.Errorf("%+v: found %+v, %v", test, found, err)
		}
		if first, ok, err := source.At(t.Context(), 0); err != nil || !ok || first.Health.OK() != test.ok {
			t.Errorf("%+v: at 0 %+v, %v", test, first, err)
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
