//go:build e2e && linux

package windows

import (
	"strings"
	"testing"

	"directx-nri/test/windows/bed"
)

// testUnits runs the unit tests of what only Windows has, which elsewhere are
// compiled and no more.
func testUnits(t *testing.T) {
	plugT4(t, 4)
	for _, test := range []struct {
		folder, run string
		how         bed.UnitTests
	}{
		{folder: "./internal/win32", run: "."},
		{folder: "./internal/capabilities", run: "."},
		{folder: "./internal/hostfiles", run: "."},
		// Wine follows no links.
		{folder: "./internal/config", run: "."},
		{folder: "./ocispec", run: "."},
		// The others have no need of Windows.
		{folder: "./discovery/pnp", run: "FindReadsWhatSnapshot|EndedContextEndsASnapshot|NotifyEnds|SnapshotsKeepNoHandles"},
		// Wine is a Windows without single devices, and the tests are for one with;
		// those that are left out set the mode themselves.
		{folder: "./cmd/dxctl", run: ".", how: bed.UnitTests{
			Env: []string{"DIRECTX_NRI_ASSIGNMENT_MODE=location-path"}, Skip: "TestConfigShowSaysWhereFrom|ByTheConfiguration$",
		}},
		{folder: "./cmd/dxctl/terminal", run: "."},
		{folder: "./cmd/dxctl/quote", run: "."},
		{folder: "./cmd/dxctl/frontend", run: "."},
		{folder: "./cmd/dxctl/preview", run: "."},
	} {
		out, err := wine.UnitTests(t, test.folder, test.run, test.how)
		if err != nil || !strings.Contains(out, "--- PASS") {
			t.Errorf("%s: %v\n%s", test.folder, err, out)
		}
	}
}
