//go:build e2e && linux

package bed

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"directx-nri/discovery"
	suite "directx-nri/test/bed"
	"directx-nri/test/windows/hardware"
)

// Hardware is what Windows reports, in place of an inventory file. A prefix has one.
type Hardware struct {
	Devices  []hardware.Device
	Adapters []hardware.Adapter
}

// Plug replaces the prefix's hardware. Devices that stay are changed in place.
func (w *Wine) Plug(t testing.TB, h Hardware) {
	t.Helper()
	var adapters strings.Builder
	for _, a := range h.Adapters {
		adapters.WriteString(a.Line())
	}
	w.replace(t, `C:\dxcore.txt`, []byte(adapters.String()))
	w.replace(t, `C:\devices.reg`, registryFile(h.Devices))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := w.output(w.Command(ctx, "reg", "import", `C:\devices.reg`)); err != nil {
		t.Fatalf("import the devices: %v", err)
	}
	happened := events(w.plugged, h.Devices)
	w.plugged = h.Devices
	f, err := os.OpenFile(w.Linux(`C:\notify.txt`), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.WriteString(happened)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// suiteProgram runs one of the suite's programs, with one more environment variable if
// env is not empty, and returns its standard output.
func (w *Wine) suiteProgram(t testing.TB, name, env string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := w.Command(ctx, filepath.Join(w.built, name+".exe"), args...)
	cmd.Env = append(cmd.Env, env)
	out, err := w.output(cmd)
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return out
}

// Examples compiles the example programs and returns a function that runs one.
func (w *Wine) Examples(t testing.TB) func(name string, args ...string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command(filepath.Join(w.parts.Root, "deployments/examples/programs/build.sh"), dir).CombinedOutput(); err != nil {
		t.Fatalf("build the example programs: %v\n%s", err, out)
	}
	return func(name string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return w.output(w.Command(ctx, filepath.Join(dir, name+".exe"), args...))
	}
}

// UnitTests runs the unit tests of a package, with HCS answering queries, and returns
// their output. skip is a pattern of the names of tests that are left out, "" for none.
func (w *Wine) UnitTests(t testing.TB, dir, skip string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	program := filepath.Join(t.TempDir(), "tests.exe")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-tags", "e2e", "-trimpath", "-overlay", removeAllOverlay(t), "-o", program, dir)
	build.Dir = w.parts.Root
	build.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the unit tests of %s: %v\n%s", dir, err, out)
	}
	cmd := w.Command(ctx, program, "-test.v", "-test.skip", skip)
	cmd.Env = append(cmd.Env, hcsAnswers, `DIRECTX_NRI_WINDOWS_BIN=Z:`+strings.ReplaceAll(w.parts.products, "/", `\`))
	cmd.Dir = filepath.Join(w.parts.Root, dir)
	return w.output(cmd)
}

// removeAllOverlay returns a build overlay whose os.RemoveAll, and with it t.TempDir,
// works under Wine 8. Wine answers the newer of Go's two ways with
// STATUS_NOT_IMPLEMENTED, which Go treats as a failure. The overlay sets the variable
// with which Go's own tests select the older way.
func removeAllOverlay(t testing.TB) string {
	t.Helper()
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(strings.TrimSpace(string(goroot)), "src", "internal", "syscall", "windows", "at_windows.go")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const off, on = "\nvar TestDeleteatFallback bool\n", "\nvar TestDeleteatFallback = true\n"
	if !strings.Contains(string(text), off) {
		t.Fatalf("%s of this Go has no %q: find how to make os.RemoveAll work under Wine", file, off)
	}
	dir := t.TempDir()
	changed, overlay := filepath.Join(dir, "at_windows.go"), filepath.Join(dir, "overlay.json")
	replace := marshal(t, map[string]any{"Replace": map[string]string{file: changed}})
	err = errors.Join(os.WriteFile(changed, []byte(strings.Replace(string(text), off, on, 1)), 0o600), os.WriteFile(overlay, replace, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return overlay
}

// DxctlJSON runs dxctl.exe without a node and decodes its JSON output into v.
func (w *Wine) DxctlJSON(t testing.TB, v any, args ...string) {
	t.Helper()
	w.dxctlJSON(t, "", v, args...)
}

// Capabilities runs 'dxctl.exe capabilities' with an HCS that answers with properties.
func (w *Wine) Capabilities(t testing.TB, properties string, v any) {
	t.Helper()
	w.SetHCSProperties(t, properties)
	w.dxctlJSON(t, hcsAnswers, v, "capabilities")
}

// SetHCSProperties sets what HCS answers to queries, empty for an error.
func (w *Wine) SetHCSProperties(t testing.TB, properties string) {
	t.Helper()
	w.replace(t, `C:\hcs-properties.json`, []byte(properties))
}

func (w *Wine) dxctlJSON(t testing.TB, env string, v any, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := w.Command(ctx, filepath.Join(w.parts.products, dxctlExe), append(args, "--output", "json")...)
	cmd.Env = append(cmd.Env, env)
	out, err := w.output(cmd)
	if err == nil {
		err = json.Unmarshal([]byte(out), v)
	}
	if err != nil {
		t.Fatalf("dxctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// Discovered returns the devices that the product's discovery finds, without Wine's own.
func (w *Wine) Discovered(t testing.TB) []discovery.Device {
	t.Helper()
	return decodeDevices(t, w.suiteProgram(t, "discover", "", "list"))
}

// DiscoveredWithoutDXCore is [Wine.Discovered] without dxcore.dll.
func (w *Wine) DiscoveredWithoutDXCore(t testing.TB) []discovery.Device {
	t.Helper()
	return decodeDevices(t, w.suiteProgram(t, "discover", withoutDXCore, "list"))
}

// Identified is [Wine.Discovered] with NVIDIA's driver, which reports UUIDs by PCI
// address.
func (w *Wine) Identified(t testing.TB, uuids map[string]string) []discovery.Device {
	t.Helper()
	var lines strings.Builder
	for address, uuid := range uuids {
		fmt.Fprintf(&lines, "%s %s\n", address, uuid)
	}
	w.replace(t, `C:\nvml.txt`, []byte(lines.String()))
	return decodeDevices(t, w.suiteProgram(t, "discover", "", "identified"))
}

// Found returns the devices with these instance IDs, as looked up for a pod's container.
func (w *Wine) Found(t testing.TB, ids ...string) []discovery.Device {
	t.Helper()
	return decodeDevices(t, w.suiteProgram(t, "discover", "", append([]string{"find"}, ids...)...))
}

func decodeDevices(t testing.TB, line string) []discovery.Device {
	t.Helper()
	// Wine has a GPU as soon as a program has a window.
	return slices.DeleteFunc(decodeLines[[]discovery.Device](t, line)[0], func(d discovery.Device) bool {
		return strings.HasPrefix(d.InstanceID, `PCI\VEN_0000&DEV_0000`)
	})
}

// Watcher is a process of the product's discovery that reports changes.
type Watcher struct{ *suite.Process }

// Watch starts a watcher. Wine 8 does not notify it of changes unless notified is set.
func (w *Wine) Watch(t testing.TB, notified bool) *Watcher {
	t.Helper()
	cmd := w.Command(context.Background(), filepath.Join(w.built, "discover.exe"), "watch")
	if notified {
		cmd.Env = append(cmd.Env, withNotifications)
	}
	return &Watcher{w.Background(t, "discover.exe", cmd)}
}

// Lists returns the lists of devices that it has reported.
func (w *Watcher) Lists(t testing.TB) [][]discovery.Device {
	t.Helper()
	var lists [][]discovery.Device
	for line := range strings.Lines(w.Log(0)) {
		// The last line may be incomplete, and the others are of the log.
		if strings.HasSuffix(line, "\n") && (line[0] == '[' || line[0] == 'n') {
			lists = append(lists, decodeDevices(t, line))
		}
	}
	return lists
}

// Notifications returns the records of the double of cfgmgr32.dll: each registration, and
// each event that it reported.
func (w *Wine) Notifications(t testing.TB) []string {
	t.Helper()
	data, err := os.ReadFile(w.Linux(`C:\notify.log`))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Fields(strings.ReplaceAll(string(data), " ", ":"))
}

// Hardware returns the GPUs of the inventory as hardware and creates their drivers' files.
func (v *Inventory) Hardware(t testing.TB, w *Wine) Hardware {
	t.Helper()
	v.place(t, w)
	var h Hardware
	for i, g := range v.GPUs {
		luid, ok := discovery.ParseLUID(g.LUID)
		if !ok {
			t.Fatalf("invalid LUID %s", g.LUID)
		}
		number := uint64(luid)
		h.Devices = append(h.Devices, hardware.Device{
			InstanceID: g.InstanceID, Class: hardware.ClassDisplay, Description: "a test's GPU",
			LocationPaths: []string{g.Location}, LUID: &number, Status: hardware.Running, Driver: g.driver(i),
		})
		h.Adapters = append(h.Adapters, hardware.Adapter{
			LUID: number, Description: "a test's GPU", Hardware: true, D3D11Graphics: true, D3D12Graphics: true, D3D12CoreCompute: true,
		})
	}
	return h
}

// driver returns the registry's entries of a GPU's driver.
func (g GPU) driver(i int) *hardware.Driver {
	d := &hardware.Driver{
		Version: "31.0.15.5222",
		INF:     fmt.Sprintf("oem%d.inf", i),
		Values:  []hardware.Value{hardware.Strings("", "UserModeDriverName", g.Store+`\user.dll`)},
	}
	for j, f := range g.Files {
		subkey := "CopyToVmOverwrite"
		if f.WOW64 {
			subkey += "Wow64"
		}
		d.Values = append(d.Values, hardware.Strings(subkey, fmt.Sprintf("File%02d", j), f.Source, f.Name))
	}
	return d
}
