//go:build e2e && linux

package windows

import (
	"strings"
	"testing"
)

// testUnits runs the unit tests of what only Windows has, which elsewhere are
// compiled and no more.
func testUnits(t *testing.T) {
	plugT4(t, 4)
	for _, test := range []struct{ folder, run string }{
		{"./internal/win32", "."},
		{"./internal/capabilities", "."},
		// The others have no need of Windows.
		{"./discovery/pnp", "FindReadsWhatSnapshot|EndedContextEndsASnapshot|NotifyEnds|SnapshotsKeepNoHandles"},
		{"./cmd/dxctl", "."},
		{"./cmd/dxctl/terminal", "."},
		{"./cmd/dxctl/quote", "."},
		{"./cmd/dxctl/frontend", "."},
		{"./cmd/dxctl/preview", "."},
		{"./cmd/dxctl/simulate", "."},
	} {
		out, err := wine.UnitTests(t, test.folder, test.run)
		if err != nil || !strings.Contains(out, "--- PASS") {
			t.Errorf("%s: %v\n%s", test.folder, err, out)
		}
	}
}
