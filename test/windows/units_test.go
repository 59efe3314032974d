//go:build e2e && linux

package windows

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"directx-nri/test/windows/bed"
)

// unsuitable returns the tests that cannot run under Wine, by directory.
func unsuitable() map[string]string {
	return map[string]string{
		"internal/localgrpc": "Listen|Dial|CloseKeepsSocket", // Wine 8 has no Unix sockets,
		"internal/shimfile":  "ThroughSymlink",               // nor reparse points.
		"nri/shim":           "Imports",                      // It runs Go.
		"cmd/dxctl/runflags": "Bash",                         // Windows has none.
		"test/windows":       "Containers",                   // containerd is not in its usual directory.
		// They are about other systems.
		"cmd/dxctl": "^TestDevicesAreNotLookedForElsewhere$|^TestAllocationsOfSomebodyElse$|^TestDocs$",
	}
}

// windowsPackages returns the directories of all packages with code or tests for
// Windows alone, and of some that handle Windows' paths and documents.
func windowsPackages(t *testing.T) []string {
	t.Helper()
	dirs := []string{"ocispec", "internal/policy", "internal/winpath", "cmd/dxctl", "test/windows"}
	const root = "../.."
	for _, top := range []string{"advertiser", "cmd", "discovery", "internal", "nri", "ocispec"} {
		err := filepath.WalkDir(filepath.Join(root, top), func(path string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(path, "_windows.go") || strings.HasSuffix(path, "_windows_test.go") {
				dirs = append(dirs, strings.TrimPrefix(filepath.Dir(path), root+"/"))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// testUnits runs the unit tests of code that is specific to Windows.
func testUnits(t *testing.T) {
	wine.Plug(t, bed.NewInventory("units").Hardware(t, wine))
	// Tests of dxctl expect a Windows that can assign single devices.
	wine.SetHCSProperties(t, server2022)
	skipped := regexp.MustCompile(`(?m)^ *--- SKIP: .*`)
	packages := windowsPackages(t)
	for dir := range unsuitable() {
		if !slices.Contains(packages, dir) {
			t.Errorf("no package %s", dir)
		}
	}
	for _, dir := range packages {
		out, err := wine.UnitTests(t, "./"+dir, unsuitable()[dir])
		if err != nil || !strings.Contains(out, "--- PASS") {
			t.Errorf("%s: %v\n%s", dir, err, out)
		}
		if skips := skipped.FindAllString(out, -1); skips != nil {
			t.Errorf("%s: skipped tests: %s", dir, skips)
		}
	}
}
