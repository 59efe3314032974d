package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// handInventory describes GPUs of both operating systems, for containers that are
// run by hand. The programs of Linux have no flags for the third.
const handInventory = `apiVersion: directx.microsoft.com/v1alpha1
kind: Inventory
devices:
- instanceID: PCI\VEN_10DE&DEV_1EB8\1
  description: NVIDIA Tesla T4
  locationPath: PCIROOT(0)#PCI(1B00)
  luid: 0x0_0xC2F5
  display: true
  compute: true
  driver: {storePath: 'C:\Windows\System32\DriverStore\FileRepository\nv.inf_amd64_1'}
  runtimeFiles: {system32: [{source: nvcuda_loader64.dll, destination: nvcuda.dll}], sysWOW64: [{source: nvcuda_loader32.dll, destination: nvcuda.dll}]}
- instanceID: WSL
  description: A paravirtualised GPU
  display: true
  compute: true
  linux: {deviceNodes: [/dev/dxg-of-another-node], libraries: [{source: /opt/another-node/libd3d12.so}]}
- instanceID: NPU
  description: A neural processor
  compute: true
  linux: {deviceNodes: [{path: /dev/npu7-of-another-node, containerPath: /dev/npu0}]}
`

// mountsFiles makes a node mount driver files on each version of Windows.
const mountsFiles = "driverFiles: mount\n"

// transcript runs dxctl with each of the lines and returns what a terminal would
// show. The GPUs are those of handInventory.
func transcript(t *testing.T, dir string, lines ...string) string {
	t.Helper()
	inventory := filepath.Join(dir, "gpus.yaml")
	testutil.WriteFile(t, inventory, handInventory, 0o600)
	var b strings.Builder
	for _, line := range lines {
		args := strings.Fields(line)
		more := []string{"--inventory", inventory, "--config", configFile(t, mountsFiles)}
		out, err := runCLI(t, append(args[:1:1], append(more, args[1:]...)...)...)
		fmt.Fprintf(&b, "$ dxctl %s\n%s", line, out)
		if err != nil {
			fmt.Fprintf(&b, "dxctl: %s\n", errlog.Text(err))
		}
		b.WriteString("\n")
	}
	return withoutDir(t, b.String(), dir)
}

func TestFlagsOutput(t *testing.T) {
	t.Parallel()
	golden(t, "flags", transcript(t, t.TempDir(),
		"flags --for ctr --gpus 0 --container-os windows --assume-files",
		"flags --for nerdctl --gpus PCIROOT(0)#PCI(1B00) --container-os windows --assume-files",
		"flags --for ctr --gpus 0 --container-os windows",
		"flags --for ctr --gpus 1 --container-os linux --assume-files",
		"flags --for nerdctl --gpus 1 --container-os linux --assume-files",
		"flags --for ctr --gpus 0 --container-os linux --with-shim",
		"flags --for nerdctl --gpus PCIROOT(0)#PCI(1B00),1 --container-os windows --with-shim",
	))
}

// The configuration is that of the container's system.
func TestFlagsWithConfiguration(t *testing.T) {
	t.Parallel()
	got := transcript(t, t.TempDir(), "flags --gpus 0 --container-os windows --assume-files --config "+configFile(t, "driverFiles: none\nextraMounts: {hostDirectories: ['D:\\models']}\n"))
	if !strings.HasSuffix(got, "\n--device\nvpci-location-path://PCIROOT(0)#PCI(1B00)\n\n") {
		t.Error(got)
	}
}

// TestFlagsLibraryPath: the flag is necessary, and hides the image's value.
func TestFlagsLibraryPath(t *testing.T) {
	t.Parallel()
	dir, p := filepath.Join(t.TempDir(), "state"), policy.Default()
	p.UseInventory = true
	gpu := discovery.Device{InstanceID: "WSL", SupportsDisplay: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg", ContainerPath: "/dev/dxg"}}, LibraryPath: []string{"/usr/lib/wsl/lib"}}
	testutil.NoError(t, policy.Write(dir, p), node.CompiledInventory(dir).Write([]discovery.Device{gpu}))
	stdout, stderr, err := runCommand(t.Context(), t, "", "flags", "--gpus", "0", "--container-os", "linux", "--assume-files", "--state-dir", dir)
	if err != nil || !strings.Contains(stdout, "\nLD_LIBRARY_PATH=/usr/lib/wsl/lib\n") || !strings.Contains(stderr, "LD_LIBRARY_PATH replaces that of the image; with --with-shim") {
		t.Errorf("%v: %s%s", err, stdout, stderr)
	}
}

func TestFlagsRefusals(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"flags":             `required flag(s) "gpus" not set`,
		"flags --gpus none": `no GPU of this node matches "none"`,
		"flags --gpus all --assume-files --host-root /x":       "[assume-files host-root]",
		"flags --gpus 0 IMAGE":                                 "other arguments require --run",
		"flags --gpus 0 --run":                                 "--run requires the container's image",
		"flags --gpus 7":                                       `matches "7"`,
		"flags --gpus 0,all":                                   `matches "all"`,
		"flags --gpus 1 --container-os windows --assume-files": "no location path; select GPUs that windows containers can have, or add --container-os linux",
		"flags --for ctr --gpus 2 --container-os linux --assume-files": "ctr has no flag for it: device node /dev/npu7-of-another-node must be /dev/npu0 in the container, " +
			"and the program keeps the path; use the runtime shim, with --with-shim",
		"flags --for nerdctl --gpus 2 --container-os linux --assume-files": "nerdctl has no flag for it",
	} {
		got := transcript(t, t.TempDir(), line)
		if !strings.Contains(got, want) || strings.Count(got, "\n") != 3 {
			t.Errorf("%s prints\n%s, want %q", line, got, want)
		}
	}
}

// TestLocationPathOfAGuest: the GPUs of Azure's and Hyper-V's virtual machines have location paths with braces, and with a # that
// does not separate elements.
func TestLocationPathOfAGuest(t *testing.T) {
	t.Parallel()
	const guest = "ACPI(_SB_)#ACPI(VMOD)#ACPI(VMBS)#VMBUS({44c4f61d-4444-4400-9d52-802e27ede19f}#{711dad3a-73ce-468b-90a9-ede6906841b2})#PCI(0000)"
	inventory := privateFile(t, "gpus.yaml", "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices:\n"+
		"- {instanceID: other, display: true, locationPath: PCIROOT(0)#PCI(1B00)}\n- {instanceID: a, display: true, locationPath: '"+guest+"'}\n")
	file := configFile(t, "resources: [{name: a.b/guest, match: {locationPath: '*#VMBUS({44c4f61d-*}#{*})#PCI(0000)'}}]\n")
	for _, test := range []struct {
		stdin string
		args  []string
		want  string
	}{
		{"", []string{"devices", strings.ToLower(guest)}, "resource: a.b/guest\n"},
		{"", []string{"flags", "--for", "ctr", "--container-os", "windows", "--gpus", guest + ",0"}, "--device\nvpci-location-path://" + guest + "\n--device\n"},
		{"", []string{"flags", "--for", "nerdctl", "--container-os", "windows", "--gpus", guest}, "--device\nvpci-location-path://" + guest + "\n"},
		{"", []string{"flags", "--with-shim", "--container-os", "windows", "--gpus", guest}, "--env\nDIRECTX_VISIBLE_DEVICES=" + guest + "\n"},
		{`{"windows":{},"annotations":{"directx.microsoft.com/visible-devices":"0, ` + guest + `"}}`, []string{"spec", "-"}, "id: " + guest + "\n"},
		{`{"windows":{"devices":[{"id":"` + guest + `","idType":"vpci-location-path"}]}}`, []string{"spec", "-"}, `"locationPath":"` + guest + `"`},
	} {
		args := slices.Concat(test.args[:1], []string{"--inventory", inventory, "--config", file}, test.args[1:])
		if stdout, stderr, err := runCommand(t.Context(), t, test.stdin, args...); err != nil || !strings.Contains(stdout, test.want) {
			t.Errorf("%q: %v, want %q in %s%s", test.args, err, test.want, stdout, stderr)
		}
	}
}
