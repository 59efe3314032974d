package modes

import (
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	const auto, mount, none = policy.FilesAuto, policy.FilesMount, policy.FilesNone
	for name, test := range map[string]struct {
		assignment policy.Assignment
		files      policy.DriverFiles
		os         string
		build      uint32
		want       Modes // with parts of the reasons
	}{
		"as configured":                  {policy.AssignByPath, mount, "windows", 26100, Modes{policy.AssignByPath, "assignmentMode is location-path", mount, "driverFiles is mount"}},
		"as configured, the other modes": {policy.AssignByClass, none, "windows", 20348, Modes{policy.AssignByClass, "all GPUs of the node", none, "driverFiles is none"}},
		"before Windows Server 2022":     {policy.AssignAuto, auto, "windows", 20347, Modes{policy.AssignByClass, "build 20347 cannot", mount, "build 20347 does not"}},
		"Windows Server 2022":            {policy.AssignAuto, auto, "windows", 20348, Modes{policy.AssignByPath, "build 20348 assigns", mount, "build 20348 does not"}},
		"before Windows Server 2025":     {policy.AssignAuto, auto, "windows", 26099, Modes{policy.AssignByPath, "build 26099 assigns", mount, "since 26100"}},
		"Windows Server 2025":            {policy.AssignAuto, auto, "windows", 26100, Modes{policy.AssignByPath, "build 26100 assigns", none, "build 26100 supplies"}},
		"not Windows":                    {policy.AssignAuto, auto, "windows", 0, Modes{policy.AssignByPath, "not Windows", mount, "not Windows"}},
		"containers of Linux":            {policy.AssignByClass, none, "linux", 0, Modes{policy.AssignByPath, "device nodes", mount, "Linux containers"}},
	} {
		got := Resolve(policy.Policy{Assignment: test.assignment, DriverFiles: test.files}, test.os, test.build)
		if got.Assignment != test.want.Assignment || !strings.Contains(got.AssignmentReason, test.want.AssignmentReason) ||
			got.DriverFiles != test.want.DriverFiles || !strings.Contains(got.DriverFilesReason, test.want.DriverFilesReason) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

func TestResolvePolicy(t *testing.T) {
	t.Parallel()
	devices := discovery.Static{
		{InstanceID: "no path"}, {InstanceID: "path", LocationPath: "PCIROOT(0)"},
		{InstanceID: "device node", DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg"}}}, {InstanceID: "software", Software: true},
	}
	for _, test := range []struct {
		os         string
		assignment policy.Assignment
		ok         bool
	}{{"windows", policy.AssignByClass, true}, {"windows", policy.AssignByPath, false}, {"linux", policy.AssignAuto, true}} {
		source, p := ResolvePolicy(devices, policy.Policy{Assignment: test.assignment, DriverFiles: policy.FilesNone}, test.os)
		if (p.Assignment == policy.AssignByClass) != (test.assignment == policy.AssignByClass) || (p.DriverFiles == policy.FilesNone) != (test.os == "windows") {
			t.Errorf("%+v: the modes are %s and %s", test, p.Assignment, p.DriverFiles)
		}
		listed, err := source.Devices(t.Context())
		for i, d := range listed {
			if want := test.ok || i > 0; d.Health.OK() != want || !want && !strings.Contains(d.Health.Reason, "no location path") {
				t.Errorf("%+v: %+v", test, d)
			}
		}
		testutil.NoError(t, err)
	}
}
