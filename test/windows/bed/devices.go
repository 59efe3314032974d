//go:build e2e && windows

package bed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
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
		_, err := m.Program("reg", "add", `HKLM\SOFTWARE\Microsoft\Windows NT\CurrentVersion`, "/v", "CurrentBuildNumber", "/d", fmt.Sprint(build), "/f")
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
	source, _ := modes.ResolvePolicy(pnp.Open(testutil.Quiet()), policy.Default(), "windows")
	return found(t)(source.Devices(t.Context()))
}

// Find returns the devices with these instance IDs, as looked up for a pod's container.
func (m *Machine) Find(t testing.TB, ids ...string) []discovery.Device {
	t.Helper()
	return found(t)(pnp.Open(testutil.Quiet()).Find(t.Context(), ids))
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
	testutil.NoError(t, copyFile(self(t), program))
	devices := found(t)(pnp.Open(testutil.Quiet()).Devices(t.Context()))
	testutil.NoError(t, nvidia.NewUUIDs("").Add(t.Context(), devices))
	return devices
}

// uuidsCommand is the argument with which this program is nvidia-smi.
const uuidsCommand = "--query-gpu=pci.bus_id,uuid"

// printUUIDs prints the file beside this program.
func printUUIDs([]string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	lines, err := os.ReadFile(program + ".csv")
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(lines)
	return err
}

// found returns a function that returns found devices, without Wine's own: it has a GPU as
// soon as a program has a window.
func found(t testing.TB) func([]discovery.Device, error) []discovery.Device {
	t.Helper()
	return func(devices []discovery.Device, err error) []discovery.Device {
		t.Helper()
		testutil.NoError(t, err)
		if n, _, _ := windows.NewLazySystemDLL("dxcore.dll").NewProc("DXCoreDoubleObjects").Call(); n != 0 {
			t.Errorf("%d objects of DXCore are not released", n)
		}
		return slices.DeleteFunc(devices, func(d discovery.Device) bool { return strings.HasPrefix(d.InstanceID, `PCI\VEN_0000&DEV_0000`) })
	}
}

// Watcher is a process of the product's discovery that reports changes.
type Watcher struct{ *Background }

// Watch starts a watcher: this program under a name for which ../wine.sh selects libraries.
func (m *Machine) Watch(t testing.TB, name string) Watcher {
	t.Helper()
	program := m.dir + `\` + name
	testutil.NoError(t, copyFile(self(t), program))
	return Watcher{m.Background(t, m.Command(t.Context(), program, watchCommand))}
}

// watchCommand is the argument with which this program is a watcher.
const watchCommand = "watch"

// watch prints the devices as JSON now and after each change, a line each.
func watch([]string) error {
	ctx := context.Background()
	source := pnp.Open(logrus.New())
	var last []byte
	for ; ; time.Sleep(200 * time.Millisecond) {
		devices, err := source.Devices(ctx)
		line, encodeErr := json.Marshal(devices)
		if err = errors.Join(err, encodeErr); err != nil {
			return err
		}
		if !bytes.Equal(line, last) {
			fmt.Println(string(line))
			last = line
		}
	}
}

// Last returns the last list of devices that it has reported, and whether there is one.
func (w Watcher) Last(t testing.TB) (devices []discovery.Device, ok bool) {
	t.Helper()
	for line := range strings.Lines(w.Log()) {
		// The last line may be incomplete, and the others are of the log.
		if strings.HasSuffix(line, "\n") && (line[0] == '[' || line[0] == 'n') {
			devices, ok = Decode[[]discovery.Device](t, line), true
		}
	}
	return found(t)(devices, nil), ok
}
