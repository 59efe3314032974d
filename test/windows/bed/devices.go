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
	"time"

	"directx-nri/discovery"
	"directx-nri/test/windows/hardware"
)

// Hardware is what Windows itself has, in place of an inventory file. There is
// one for the whole prefix.
type Hardware struct {
	Devices  []hardware.Device
	Adapters []hardware.Adapter
}

// Plug makes the prefix have that hardware and no other. Devices that stay are
// changed in place.
func (w *Wine) Plug(t testing.TB, h Hardware) {
	t.Helper()
	var adapters strings.Builder
	for _, a := range h.Adapters {
		adapters.WriteString(a.Line())
	}
	w.replace(t, `C:\dxcore.txt`, []byte(adapters.String()))
	w.replace(t, `C:\devices.json`, marshal(t, hardware.Node{Devices: h.Devices}))
	if out, err := w.suiteProgram(t, "devices", nil, `C:\devices.json`); err != nil {
		t.Fatalf("change the hardware: %v\n%s", err, out)
	}
}

// replace writes a file of the prefix, which somebody may be reading.
func (w *Wine) replace(t testing.TB, path string, content []byte) {
	t.Helper()
	path = w.Linux(path)
	if err := os.WriteFile(path+".new", content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// suiteProgram runs one of the suite's own programs to its end, with additions
// to its environment.
func (w *Wine) suiteProgram(t testing.TB, name string, env []string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := w.Command(ctx, filepath.Join(w.built, name+".exe"), args...)
	cmd.Env = append(cmd.Env, env...)
	return w.output(cmd)
}

// Examples compiles the example programs, as a person does who wants to run them on
// a node, and returns what runs one of them to its end.
func (w *Wine) Examples(t testing.TB) func(name string, args ...string) (string, error) {
	t.Helper()
	folder := t.TempDir()
	if out, err := exec.Command(filepath.Join(w.parts.root, "deployments/examples/programs/build.sh"), folder).CombinedOutput(); err != nil {
		t.Fatalf("build the example programs: %v\n%s", err, out)
	}
	return func(name string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		return w.output(w.Command(ctx, filepath.Join(folder, name+".exe"), args...))
	}
}

// UnitTests says how unit tests are run under Wine.
type UnitTests struct {
	// Skip matches the names of those that are left out, "" none.
	Skip string
	// HCSAnswers makes the Host Compute Service available to them.
	HCSAnswers bool
}

// UnitTests runs those unit tests of the package in a folder of the repository
// whose names match run, and returns what they printed.
func (w *Wine) UnitTests(t testing.TB, folder, run string, how UnitTests) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	program := filepath.Join(t.TempDir(), "tests.exe")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-trimpath", "-overlay", removal(ctx, t), "-o", program, folder)
	build.Dir = w.parts.root
	build.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the unit tests of %s: %v\n%s", folder, err, out)
	}
	cmd := w.Command(ctx, program, "-test.v", "-test.run", run, "-test.skip", how.Skip)
	if how.HCSAnswers {
		cmd.Env = append(cmd.Env, hcsAnswers)
	}
	cmd.Dir = filepath.Join(w.parts.root, folder) // Where the tests' files are.
	return w.output(cmd)
}

// removal returns the overlay of a build whose os.RemoveAll works under Wine 8,
// which answers the newer of Go's two ways with STATUS_NOT_IMPLEMENTED. Go takes
// that for a failure, not for a reason to try the older one; but the package has a
// switch for its own tests. Every t.TempDir() depends on it.
func removal(ctx context.Context, t testing.TB) string {
	t.Helper()
	goroot, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatalf("ask Go where it is: %v", err)
	}
	file := filepath.Join(strings.TrimSpace(string(goroot)), "src", "internal", "syscall", "windows", "at_windows.go")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const off, on = "\nvar TestDeleteatFallback bool\n", "\nvar TestDeleteatFallback = true\n"
	if !strings.Contains(string(text), off) {
		t.Fatalf("there is no %q in %s of this Go: look how files are removed under Wine", off, file)
	}
	folder := t.TempDir()
	instead, overlay := filepath.Join(folder, "at_windows.go"), filepath.Join(folder, "overlay.json")
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{file: instead}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{instead: strings.Replace(string(text), off, on, 1), overlay: string(replace)} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return overlay
}

// withoutDXCore has a program find no dxcore.dll, as on Windows Server 2019.
var withoutDXCore = []string{"WINEDLLOVERRIDES=" + overrides + withoutDoubles + ";dxcore=d"}

// withNotifications has a program find the double of cfgmgr32.dll, which tells of
// devices that come and go. Wine 8's own does not.
var withNotifications = []string{"WINEDLLOVERRIDES=" + overrides + ";cfgmgr32=n"}

// DxctlJSON runs dxctl.exe, which needs no node, and decodes what it prints as
// JSON into v.
func (w *Wine) DxctlJSON(t testing.TB, v any, args ...string) {
	t.Helper()
	w.dxctlJSON(t, nil, v, args...)
}

// Capabilities runs 'dxctl.exe capabilities' where the Host Compute Service
// answers with properties, and decodes what it prints into v.
func (w *Wine) Capabilities(t testing.TB, properties string, v any) {
	t.Helper()
	w.SetHCSProperties(t, properties)
	w.dxctlJSON(t, []string{hcsAnswers}, v, "capabilities")
}

// SetHCSProperties has the Host Compute Service tell that of itself, and with ""
// nothing, to those who can ask it.
func (w *Wine) SetHCSProperties(t testing.TB, properties string) {
	t.Helper()
	w.replace(t, `C:\hcs-properties.json`, []byte(properties))
}

// hcsAnswers has a program find the double of computecore.dll, which answers.
const hcsAnswers = "WINEDLLOVERRIDES=" + overrides + ";cfgmgr32=b;computecore=n"

func (w *Wine) dxctlJSON(t testing.TB, env []string, v any, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := w.Command(ctx, filepath.Join(w.parts.products, dxctlExe), append(args, "--output", "json")...)
	cmd.Env = append(cmd.Env, env...)
	out, err := w.output(cmd)
	if err != nil {
		t.Fatalf("dxctl %s: %v", strings.Join(args, " "), err)
	}
	if err := json.Unmarshal([]byte(out), v); err != nil {
		t.Fatalf("dxctl %s printed %q: %v", strings.Join(args, " "), out, err)
	}
}

// Discovered returns the devices that the product's discovery finds. Those that
// Wine makes up itself are left out.
func (w *Wine) Discovered(t testing.TB) []discovery.Device {
	t.Helper()
	return w.discovered(t, nil, "list")
}

// DiscoveredWithoutDXCore is Discovered where there is no dxcore.dll.
func (w *Wine) DiscoveredWithoutDXCore(t testing.TB) []discovery.Device {
	t.Helper()
	return w.discovered(t, withoutDXCore, "list")
}

// Identified is Discovered with what NVIDIA's driver tells of its GPUs, whose
// UUIDs those are by their place on the PCI bus.
func (w *Wine) Identified(t testing.TB, uuids map[string]string) []discovery.Device {
	t.Helper()
	var lines strings.Builder
	for place, uuid := range uuids {
		fmt.Fprintf(&lines, "%s %s\n", place, uuid)
	}
	w.replace(t, `C:\nvml.txt`, []byte(lines.String()))
	return w.discovered(t, nil, "identified")
}

// Found returns the devices with these instance IDs, as they are looked up for a
// pod's container.
func (w *Wine) Found(t testing.TB, ids ...string) []discovery.Device {
	t.Helper()
	return w.discovered(t, nil, append([]string{"find"}, ids...)...)
}

func (w *Wine) discovered(t testing.TB, env []string, args ...string) []discovery.Device {
	t.Helper()
	out, err := w.suiteProgram(t, "discover", env, args...)
	if err != nil {
		t.Fatalf("discover %s: %v", strings.Join(args, " "), err)
	}
	return decodeDevices(t, out)
}

func decodeDevices(t testing.TB, line string) []discovery.Device {
	t.Helper()
	var devices []discovery.Device
	if err := json.Unmarshal([]byte(line), &devices); err != nil {
		t.Fatalf("discover said %q: %v", line, err)
	}
	// Wine has a GPU of its own as soon as a program has a window.
	return slices.DeleteFunc(devices, func(d discovery.Device) bool { return strings.HasPrefix(d.InstanceID, `PCI\VEN_0000&DEV_0000`) })
}

// Usage is what a process holds.
type Usage struct {
	Handles, Goroutines int
	// Private is the memory of the process, and Heap the part of it that Go's
	// collector holds, in bytes.
	Private, Heap int64
	// Objects are the living objects of the dxcore.dll double.
	Objects int
}

// Rounds is what rounds of discovery cost, and what the process held before and
// after them.
type Rounds struct {
	Rounds, Devices int
	PerRound        time.Duration
	Before, After   Usage
}

// DiscoverRounds discovers n times in one process.
func (w *Wine) DiscoverRounds(t testing.TB, n int) Rounds {
	t.Helper()
	out, err := w.suiteProgram(t, "discover", nil, "rounds", fmt.Sprint(n))
	if err != nil {
		t.Fatalf("discover rounds: %v", err)
	}
	var r Rounds
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("discover rounds said %q: %v", out, err)
	}
	return r
}

// Watcher is a process of the product's discovery that tells of changes.
type Watcher struct{ *Background }

// Watch starts one where Windows tells of changes or, as Wine 8, does not. It is
// there when [Watcher.Lists] has something, and ends with the test.
func (w *Wine) Watch(t testing.TB, notified bool) *Watcher {
	t.Helper()
	cmd := w.Command(context.Background(), filepath.Join(w.built, "discover.exe"), "watch")
	if notified {
		cmd.Env = append(cmd.Env, withNotifications...)
	}
	return &Watcher{w.Background(t, "discover.exe", cmd)}
}

// Lists returns the lists of devices that it has told of.
func (w *Watcher) Lists(t testing.TB) [][]discovery.Device {
	t.Helper()
	var lists [][]discovery.Device
	for line := range strings.Lines(w.Output(t)) {
		if strings.HasSuffix(line, "\n") { // The rest is still being written.
			lists = append(lists, decodeDevices(t, line))
		}
	}
	return lists
}

// Notifications returns what the double of cfgmgr32.dll did: a line for each
// registration, and for each event that it told of.
func (w *Wine) Notifications(t testing.TB) []string {
	t.Helper()
	data, err := os.ReadFile(w.Linux(`C:\notify.log`))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Fields(strings.ReplaceAll(string(data), " ", ":"))
}

// Hardware returns the GPUs of the inventory as hardware, with their drivers'
// files put where Windows has them.
func (v *Inventory) Hardware(t testing.TB, w *Wine) Hardware {
	t.Helper()
	v.place(t, w)
	var h Hardware
	for i, g := range v.GPUs {
		luid, ok := discovery.ParseLUID(g.LUID)
		if !ok {
			t.Fatalf("LUID %s is none", g.LUID)
		}
		number := uint64(luid)
		h.Devices = append(h.Devices, hardware.Device{
			InstanceID:    g.InstanceID,
			Class:         hardware.ClassDisplay,
			Description:   "a test's GPU",
			LocationPaths: []string{g.Location},
			LUID:          &number,
			Status:        hardware.Running,
			Driver:        g.driver(i),
		})
		h.Adapters = append(h.Adapters, hardware.Adapter{
			LUID: number, Description: "a test's GPU", Hardware: true,
			D3D11Graphics: true, D3D12Graphics: true, D3D12CoreCompute: true,
		})
	}
	return h
}

// driver returns what the registry says of a GPU's driver.
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
