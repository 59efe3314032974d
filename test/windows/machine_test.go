//go:build e2e && windows

package windows

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// dxctlJSON runs dxctl.exe without a node and decodes its JSON output.
func dxctlJSON[T any](t *testing.T, args ...string) T {
	t.Helper()
	stdout, _ := machine.Exec(t, 0, machine.Command(t.Context(), machine.Executable(bed.Dxctl), append(args, "--output", "json")...))
	return bed.Decode[T](t, stdout)
}

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
	stdout, _ := machine.Exec(t, 1, machine.Command(t.Context(), machine.Executable(bed.Dxctl), "doctor", "--state-dir", t.TempDir(), "--cri-socket", `\\.\pipe\none`))
	t.Log(stdout)
	want := regexp.MustCompile(fmt.Sprintf(`(?m)^✔ system .*build %d\..*SupportedSchemaVersions`, windows.RtlGetVersion().BuildNumber))
	if !want.MatchString(stdout) || !strings.Contains(stdout, "✘ containerd") {
		t.Errorf("the build or the schemas of the Host Compute Service are not reported, or that containerd does not answer")
	}

	devices := dxctlJSON[[]struct {
		InstanceID, Health, LocationPath, DriverStorePath string
		System32, SysWOW64                                []discovery.RuntimeFile
	}](t, "devices", "--state-dir", t.TempDir())
	t.Logf("%d devices: %+v", len(devices), devices)
	var usable []string
	for _, d := range devices {
		if d.Health != "healthy" || d.LocationPath == "" {
			continue // It is not offered.
		}
		usable = append(usable, d.LocationPath)
		if info, err := os.Stat(d.DriverStorePath); err != nil || !info.IsDir() {
			t.Errorf("the driver store path of %s is %q: %v", d.InstanceID, d.DriverStorePath, err)
		}
		files := slices.Concat(d.System32, d.SysWOW64)
		missing := slices.DeleteFunc(slices.Clone(files), func(f discovery.RuntimeFile) bool {
			_, err := os.Stat(filepath.Join(d.DriverStorePath, f.Source))
			return err == nil
		})
		t.Logf("files of %s that do not exist: %v", d.InstanceID, missing)
		if len(files) > 0 && len(missing) == len(files) {
			t.Errorf("none of the %d runtime files of %s exists", len(files), d.InstanceID)
		}
	}
	if machine.Doubled && len(usable) != len(n.GPUs) {
		t.Errorf("the GPUs that can be used are %q, want those of the inventory", usable)
	}

	id := "machine-all"
	err := n.RunImage(t, id, bed.Visible("all")...)
	switch {
	case len(usable) == 0:
		n.MustRefuse(t, id, err)
	case err != nil:
		t.Errorf("a container that requests all of %d GPUs: %v", len(usable), err)
	default:
		if devices := n.Document(t, id).AssignedDevices; strings.Contains(stdout, "assigns single devices") && len(devices) != len(usable) || len(devices) == 0 {
			t.Errorf("AssignedDevices are %+v, want %q", devices, usable)
		}
	}
}

// unsuitable returns the tests that cannot run under Wine, by directory.
func unsuitable() map[string]string {
	return map[string]string{
		"internal/localgrpc": "Listen|Dial|CloseKeepsSocket", // Wine 8 has no Unix sockets.
		"shim":               "Imports",                      // It runs Go.
		// They are about other systems, or about the texts of their errors.
		"cmd/dxctl": "^Test(Docs|ConfigApplyAndShow|RuntimeOnLinux)$",
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
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		cmd := machine.Command(ctx, program, "-test.v", "-test.skip", skip[dir])
		cmd.Dir = filepath.Join("..", "..", dir)
		stdout, _ := machine.Exec(t, 0, cmd)
		cancel()
		delete(skip, dir)
		if !strings.Contains(stdout, "--- PASS") {
			t.Errorf("%s: no test ran: %s", dir, stdout)
		}
		if skips := skipped.FindAllString(stdout, -1); skips != nil {
			t.Errorf("%s: skipped tests: %s", dir, skips)
		}
	}
	if len(skip) > 0 {
		t.Errorf("no such packages: %v", skip)
	}
}
