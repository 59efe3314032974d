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
	wine.SetHCSProperties(t, schemas(0, 1, 2, 3, 4, 5)) // Windows Server 2022
	for _, test := range []struct {
		folder, run string
		how         bed.UnitTests
	}{
		{folder: "./internal/win32", run: "."},
		{folder: "./internal/capabilities", run: "."},
		{folder: "./internal/hostfiles", run: "."},
		{folder: "./internal/config", run: "."},
		{folder: "./internal/durable", run: "."},
		{folder: "./ocispec", run: "."},
		// The others have no need of Windows.
		{folder: "./discovery/pnp", run: "FindReadsWhatSnapshot|EndedContextEndsASnapshot|NotifyEnds|SnapshotsKeepNoHandles"},
		// The tests expect a Windows that can assign single devices.
		{folder: "./cmd/dxctl", run: ".", how: bed.UnitTests{HCSAnswers: true}},
		{folder: "./cmd/dxctl/runflags", run: "."},
		{folder: "./cmd/dxctl/preview", run: "."},
	} {
		out, err := wine.UnitTests(t, test.folder, test.run, test.how)
		if err != nil || !strings.Contains(out, "--- PASS") {
			t.Errorf("%s: %v\n%s", test.folder, err, out)
		}
	}
}
