//go:build e2e && windows

package bed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/windows"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/nvidia"
	"github.com/directx-nri/directx-nri/discovery/pnp"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/ocispec/modes"
)

// SetHCSProperties sets what the double of the Host Compute Service answers to queries,
// empty for an error.
func (m *Machine) SetHCSProperties(t testing.TB, properties string) {
	t.Helper()
	Replace(t, `C:\hcs-properties.json`, []byte(properties))
}

// SetBuild sets Wine's build number of Windows for programs that start afterward, until
// the test ends.
func (m *Machine) SetBuild(t testing.TB, build uint32) {
	t.Helper()
	set := func(build uint32) {
		_, err := m.Run("reg", "add", `HKLM\SOFTWARE\Microsoft\Windows NT\CurrentVersion`, "/v", "CurrentBuildNumber", "/d", fmt.Sprint(build), "/f")
		if err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { set(windows.RtlGetVersion().BuildNumber) }) // This program does not notice the change.
	set(build)
}

// SetOwnFiles makes the double refuse containers with a device and a mount of one of these
// files, until the test ends, as Windows Server 2025 refuses files that it supplies itself.
// They are relative to C:\Windows.
func (m *Machine) SetOwnFiles(t testing.TB, files ...string) {
	t.Helper()
	const list = `C:\hcs-own-files.txt`
	var text strings.Builder
	for _, file := range files {
		path := JSON(t, `C:\Windows\`+file)
		fmt.Fprintf(&text, "%s\n", path[1:len(path)-1])
	}
	t.Cleanup(func() { Replace(t, list, nil) })
	Replace(t, list, []byte(text.String()))
}

// HCSProperties are properties of the Host Compute Service.
const HCSProperties = `{"Properties":[{"SupportedSchemaVersions":[{"Major":2,"Minor":5}]}]}`

// Devices returns the devices that the product's discovery finds.
func (m *Machine) Devices(t testing.TB) []discovery.Device {
	t.Helper()
	source, _ := modes.ResolvePolicy(pnp.Open(), policy.Default(), "windows")
	devices, err := source.Devices(t.Context())
	testutil.NoError(t, err)
	if n, _, _ := windows.NewLazySystemDLL("dxcore.dll").NewProc("DXCoreDoubleObjects").Call(); n != 0 {
		t.Errorf("%d objects of DXCore are not released", n)
	}
	return notWines(devices)
}

// notWines returns the devices without Wine's own: it has a GPU as soon as a program has a window.
func notWines(devices []discovery.Device) []discovery.Device {
	return slices.DeleteFunc(devices, func(d discovery.Device) bool { return strings.HasPrefix(d.InstanceID, `PCI\VEN_0000&DEV_0000`) })
}

// programs returns the other programs that this program is, by its first argument.
func programs() map[string]func() error {
	return map[string]func() error{devicesCommand: printDevices, uuidsCommand: printUUIDs, divertCommand: divert}
}

const (
	devicesCommand = "devices"
	uuidsCommand   = "--query-gpu=pci.bus_id,uuid" // of nvidia-smi
)

// printDevices prints the devices as JSON.
func printDevices() error {
	devices, err := pnp.Open().Devices(context.Background())
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(devices))
}

// DevicesWithoutDXCore returns the devices that are found by a program that cannot load DXCore.
func (m *Machine) DevicesWithoutDXCore(t testing.TB) []discovery.Device {
	t.Helper()
	const name = "without-dxcore.exe"
	self, err := os.Executable()
	testutil.NoError(t, err, copyFile(self, `C:\`+name))
	_, err = m.Run("reg", "add", `HKCU\Software\Wine\AppDefaults\`+name+`\DllOverrides`, "/v", "dxcore", "/d", "disabled", "/f")
	testutil.NoError(t, err)
	out, err := m.Run(`C:\`+name, devicesCommand)
	testutil.NoError(t, err)
	return notWines(Decode[[]discovery.Device](t, out))
}

// printUUIDs prints the file beside this program.
func printUUIDs() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	lines, err := os.ReadFile(program + ".csv")
	_, writeErr := os.Stdout.Write(lines)
	return errors.Join(err, writeErr)
}

// WithUUIDs returns the devices, of which the double of nvidia-smi reports the UUIDs of gpus.
// It is this program, in their driver store directory.
func (m *Machine) WithUUIDs(t testing.TB, gpus ...GPU) []discovery.Device {
	t.Helper()
	var lines strings.Builder
	for _, g := range gpus {
		fmt.Fprintf(&lines, "00000000:%02X:%02X.0, %s\r\n", *g.BusNumber, *g.Address>>16, g.UUID)
	}
	program := gpus[0].DriverStorePath + `\nvidia-smi.exe`
	testutil.WriteFile(t, program+".csv", lines.String(), 0o600)
	self, err := os.Executable()
	testutil.NoError(t, err, copyFile(self, program))
	devices := m.Devices(t)
	testutil.NoError(t, nvidia.NewUUIDs("").Add(t.Context(), devices))
	return devices
}
