//go:build e2e && windows

package bed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/windows"
	"golang.org/x/sys/windows/registry"

	"directx-nri/discovery"
	"directx-nri/discovery/pnp"
	"directx-nri/internal/testutil"
	"directx-nri/internal/win32"
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
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, `SOFTWARE\Microsoft\Windows NT\CurrentVersion`, registry.QUERY_VALUE|registry.SET_VALUE)
	if err != nil {
		t.Fatal(err)
	}
	const name = "CurrentBuildNumber"
	before, _, err := key.GetStringValue(name)
	if err == nil {
		err = key.SetStringValue(name, strconv.FormatUint(uint64(build), 10))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(key.SetStringValue(name, before), key.Close()); err != nil {
			t.Error(err)
		}
	})
}

// HCSProperties are properties of the Host Compute Service.
const HCSProperties = `{"Properties":[{"SupportedSchemaVersions":[{"Major":2,"Minor":5}]}]}`

// DxctlJSON runs dxctl.exe without a node and decodes its JSON output into v.
func (m *Machine) DxctlJSON(t testing.TB, v any, args ...string) {
	t.Helper()
	out, err := m.Program(m.Executable(Dxctl), append(args, "--output", "json")...)
	if err == nil {
		err = json.Unmarshal([]byte(out), v)
	}
	if err != nil {
		t.Fatalf("dxctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// Devices returns the devices that the product's discovery finds.
func (m *Machine) Devices(t testing.TB) []discovery.Device {
	t.Helper()
	return found(t)(pnp.Open(pnp.NewSystem(), testutil.Quiet()).Devices(t.Context()))
}

// Find returns the devices with these instance IDs, as looked up for a pod's container.
func (m *Machine) Find(t testing.TB, ids ...string) []discovery.Device {
	t.Helper()
	return found(t)(pnp.Open(pnp.NewSystem(), testutil.Quiet()).Find(t.Context(), ids))
}

// Identified returns the devices with NVIDIA's driver, which reports UUIDs by PCI address.
func (m *Machine) Identified(t testing.TB, uuids map[string]string) []discovery.Device {
	t.Helper()
	var lines strings.Builder
	for address, uuid := range uuids {
		fmt.Fprintf(&lines, "%s %s\n", address, uuid)
	}
	Replace(t, `C:\nvml.txt`, []byte(lines.String()))
	return found(t)(discovery.WithUUIDs(pnp.Open(pnp.NewSystem(), testutil.Quiet()), time.Minute, win32.NVMLUUIDs).Devices(t.Context()))
}

// found returns a function that returns found devices, without Wine's own: it has a GPU as
// soon as a program has a window.
func found(t testing.TB) func([]discovery.Device, error) []discovery.Device {
	t.Helper()
	return func(devices []discovery.Device, err error) []discovery.Device {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
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
	self, err := os.Executable()
	program := m.dir + `\` + name
	if err = errors.Join(err, copyFile(self, program)); err != nil {
		t.Fatal(err)
	}
	return Watcher{m.Background(t, m.Command(t.Context(), program, watchCommand))}
}

// watchCommand is the argument with which this program is a watcher.
const watchCommand = "watch"

// watch prints the devices as JSON now and after each change, a line each.
func watch(ctx context.Context) error {
	source := pnp.Open(pnp.NewSystem(), logrus.New())
	changes, ended := make(chan struct{}, 1), make(chan error, 1)
	changes <- struct{}{}
	go func() { // Ends with the process.
		ended <- source.Watch(ctx, func() {
			select {
			case changes <- struct{}{}:
			default: // One is pending.
			}
		})
	}()
	for {
		select {
		case err := <-ended:
			return err
		case <-changes:
		}
		devices, err := source.Devices(ctx)
		if err = errors.Join(err, json.NewEncoder(os.Stdout).Encode(devices)); err != nil {
			return err
		}
	}
}

// Last returns the last list of devices that it has reported, and whether there is one.
func (w Watcher) Last(t testing.TB) (devices []discovery.Device, ok bool) {
	t.Helper()
	for line := range strings.Lines(w.Log()) {
		// The last line may be incomplete, and the others are of the log.
		if strings.HasSuffix(line, "\n") && (line[0] == '[' || line[0] == 'n') {
			devices, ok = decodeLines[[]discovery.Device](t, line)[0], true
		}
	}
	return found(t)(devices, nil), ok
}

// Notifications returns the records of the double of cfgmgr32.dll: each registration, and
// each event that it reported.
func (m *Machine) Notifications(t testing.TB) []string {
	t.Helper()
	return strings.Fields(strings.ReplaceAll(string(ReadFile(t, `C:\notify.log`)), " ", ":"))
}
