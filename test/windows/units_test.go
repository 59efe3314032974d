//go:build e2e && linux

package windows

import (
	"strings"
	"testing"
)

// testUnits runs the unit tests of code that is specific to Windows.
func testUnits(t *testing.T) {
	plugT4(t, 4)
	// Tests of dxctl expect a Windows that can assign single devices.
	wine.SetHCSProperties(t, server2022)
	for _, test := range []struct{ dir, run string }{
		{"./internal/win32", "."},
		{"./internal/capabilities", "."},
		{"./internal/hostfiles", "."},
		{"./internal/durable", "."},
		{"./internal/config", "."},
		{"./internal/policy", "."},
		{"./internal/winpath", "."},
		{"./ocispec", "."},
		// The others do not need Windows.
		{"./discovery/pnp", "FindReadsWhatSnapshot|EndedContextEndsASnapshot|NotifyEnds|SnapshotsKeepNoHandles"},
		{"./cmd/dxctl", "."},
		{"./cmd/dxctl/runflags", "."},
	} {
		out, err := wine.UnitTests(t, test.dir, test.run)
		if err != nil || !strings.Contains(out, "--- PASS") {
			t.Errorf("%s: %v\n%s", test.dir, err, out)
		}
	}
}
