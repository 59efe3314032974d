//go:build e2e && windows

package windows

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// TestMachine checks what dxctl reports of this machine, and runs a container with all of
// its GPUs, or without one. Under Wine, it has those of an inventory. It changes the
// hardware, as TestDiscovery does.
//
//nolint:paralleltest // See TestDiscovery.
func TestMachine(t *testing.T) {
	if machine.Doubled {
		machine.SetHCSProperties(t, bed.HCSProperties)
	}
	n := start(t, bed.Options{Name: "machine", Discover: true, Settings: autoSettings})
	report, err := n.Dxctl("doctor", "--state-dir", t.TempDir(), "--cri-socket", `\\.\pipe\none`)
	want := regexp.MustCompile(fmt.Sprintf(`(?m)^✔ system .*build %d\..*SupportedSchemaVersions`, windows.RtlGetVersion().BuildNumber))
	if err == nil || !want.MatchString(report) || !strings.Contains(report, "✘ containerd") {
		t.Errorf("the build or the schemas of the Host Compute Service are not reported, or that containerd does not answer: %v: %s", err, report)
	}

	list, err := n.Dxctl("devices", "--state-dir", t.TempDir(), "--output", "json")
	testutil.NoError(t, err)
	devices := bed.Decode[[]struct {
		InstanceID, Health, LocationPath, DriverStorePath string
		System32                                          []discovery.RuntimeFile
	}](t, list)
	t.Logf("%d devices: %+v", len(devices), devices)
	usable := 0
	for _, d := range devices {
		if d.Health != "healthy" || d.LocationPath == "" {
			continue // It is not offered.
		}
		usable++
		exists := func(f discovery.RuntimeFile) bool {
			_, err := os.Stat(filepath.Join(d.DriverStorePath, f.Source))
			return err == nil
		}
		if len(d.System32) > 0 && !slices.ContainsFunc(d.System32, exists) {
			t.Errorf("none of the %d runtime files of %s exists in %q", len(d.System32), d.InstanceID, d.DriverStorePath)
		}
	}
	if machine.Doubled && usable != len(n.GPUs) {
		t.Errorf("%d GPUs can be used, want those of the inventory", usable)
	}

	id := "machine-all"
	err = n.RunImage(t, id, bed.Visible("all")...)
	if usable == 0 {
		n.MustRefuse(t, id, err)
		return
	}
	testutil.NoError(t, err)
	if devices := n.Document(t, id).AssignedDevices; strings.Contains(report, "assigns single devices") && len(devices) != usable || len(devices) == 0 {
		t.Errorf("AssignedDevices are %+v, want %d", devices, usable)
	}
}

// unsuitable returns the tests that cannot run under Wine, by directory.
func unsuitable() map[string]string {
	return map[string]string{
		"internal/localgrpc": "Listen|Dial|CloseKeepsSocket", // Wine 8 has no Unix sockets.
		"shim":               "Imports",                      // It runs Go.
		// They are about other systems, or about the texts of their errors.
		"cmd/dxctl": "^Test(Docs|ConfigApplyAndShow|RuntimeOnLinux|ReportHasNoSecret)$",
	}
}

// testUnits runs the unit tests of code that is specific to Windows, as wine.sh has built
// them. On Windows itself, go test runs all of them.
func testUnits(t *testing.T) {
	machine.Plug(t, machine.NewGPUs("units")...)
	machine.SetHCSProperties(t, bed.HCSProperties)
	defer machine.SetHCSProperties(t, "")
	skipped := regexp.MustCompile(`(?m)^ *--- SKIP: .*`)
	programs, err := filepath.Glob(machine.Executable(`units\*.exe`))
	if err != nil || len(programs) < 10 {
		t.Fatalf("the unit tests are %q: %v", programs, err)
	}
	skip := unsuitable()
	for _, program := range programs {
		// Its name is the directory's, with dots.
		dir := strings.ReplaceAll(strings.TrimSuffix(filepath.Base(program), ".exe"), ".", "/")
		stdout, err := machine.RunIn(filepath.Join("..", "..", dir), nil, program, "-test.v", "-test.skip", skip[dir])
		delete(skip, dir)
		if err != nil || !strings.Contains(stdout, "--- PASS") {
			t.Errorf("%s: %v: %s", dir, err, stdout)
		}
		if skips := skipped.FindAllString(stdout, -1); skips != nil {
			t.Errorf("%s: skipped tests: %s", dir, skips)
		}
	}
	if len(skip) > 0 {
		t.Errorf("no such packages: %v", skip)
	}
}
