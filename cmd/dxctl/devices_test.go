package main

import (
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/advertiser/resources"
	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// mixed is the inventory of a node with a GPU of each kind.
const mixed = `apiVersion: directx.microsoft.com/v1alpha1
kind: Inventory
devices:
- instanceID: PCI\VEN_10DE&DEV_1EB8\1
  description: NVIDIA Tesla T4
  locationPath: PCIROOT(0)#PCI(1B00)
  luid: 0x0_0xC2F5
  dedicatedMemory: 15Gi
  numaNode: 0
  display: true
  compute: true
  driver: {version: 31.0.15.5222, storePath: 'C:\Windows\System32\DriverStore\FileRepository\nv.inf_amd64_1'}
  runtimeFiles:
    system32: [nvapi64.dll, {source: nvcuda_loader64.dll, destination: nvcuda.dll}]
    sysWOW64: [nvapi.dll]
- instanceID: PCI\VEN_1002&DEV_73BF\2
  description: AMD Radeon RX 6800 XT
  locationPath: PCIROOT(0)#PCI(0100)#PCI(0000)#PCI(0000)
  luid: 0x0_0xC2F6
  dedicatedMemory: 16Gi
  display: true
  detachable: true
  health: {reason: driver is not started (code 10)}
  driver: {version: 31.0.12027.9001}
- instanceID: PCI\VEN_8086&DEV_7D1D\3
  description: Intel AI Boost
  locationPath: PCIROOT(0)#PCI(0B00)
  compute: true
- instanceID: ROOT\BASICRENDER\0000
  description: Microsoft Basic Render Driver
- instanceID: PCI\VEN_8086&DEV_9A49\4
  description: 日本のGPU
  integrated: true
  display: true
`

// newInventory writes mixed and returns its path.
func newInventory(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "gpus.yaml")
	testutil.WriteFile(t, file, mixed, 0o600)
	return file
}

func TestDevicesForms(t *testing.T) {
	t.Parallel()
	inventory := newInventory(t)
	// On Windows, too, a GPU is then healthy without a location path.
	byClass := configFile(t, "assignmentMode: class-guid\n")
	for name, args := range map[string][]string{
		"devices":          nil,
		"devices-wide":     {"-o", "wide"},
		"devices-json":     {"-o", "json"},
		"devices-yaml":     {"-o", "yaml"},
		"devices-one":      {"PCIROOT(0)#PCI(1b00)"},
		"devices-one-json": {"0xC2F5", "-o", "json"},
		"devices-broken":   {"1"},
		"devices-software": {`ROOT\BASICRENDER\0000`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := runCLI(t, append([]string{"devices", "--inventory", inventory, "--config", byClass}, args...)...)
			testutil.NoError(t, err)
			golden(t, name, out)
		})
	}
}

func TestDevicesOutput(t *testing.T) {
	t.Parallel()
	inventory := newInventory(t)
	empty, none := filepath.Join(t.TempDir(), "empty.yaml"), filepath.Join(t.TempDir(), "none")
	testutil.WriteFile(t, empty, "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices: []\n", 0o600)
	mounted := t.TempDir()
	testutil.WriteFile(t, filepath.Join(mounted, "dev", "dxg"), "", 0o600)
	for name, test := range map[string]struct {
		args      []string
		want, err string
	}{
		"an inventory by configuration": {[]string{"--config", configFile(t, "inventory: "+inventory+"\n"), "-o", "json"}, `"PCI\\VEN_10DE&DEV_1EB8\\1"`, ""},
		"a configuration's replicas":    {[]string{"--config", configFile(t, "replicas: 3\n"), "--inventory", inventory, "-o", "json"}, `"replicas": 3`, ""},
		"no GPU in a table":             {[]string{"--inventory", empty}, "This node has no GPU.\n", ""},
		"no headers":                    {[]string{"--inventory", inventory, "--no-headers"}, "0  NVIDIA Tesla T4", ""},
		"standard input":                {[]string{"--inventory", "-"}, "0      NVIDIA Tesla T4", ""},
		"no GPU in JSON":                {[]string{"--inventory", empty, "-o", "json"}, "[]\n", ""},
		"no GPU in YAML":                {[]string{"--inventory", empty, "-o", "yaml"}, "[]\n", ""},
		"a GPU that does not exist":     {[]string{"--inventory", empty, "0"}, "", `no GPU of this node is "0"`},
		"no such inventory":             {[]string{"--inventory", none}, "", none},
		"two at once":                   {[]string{"0", "1"}, "", "accepts at most 1 arg(s), received 2"},
		"a node without GPUs":           {nil, "", "--inventory"},
		"a node that is mounted":        {[]string{"--host-root", mounted}, "", "find GPUs: "},
	} {
		if runtime.GOOS == "windows" && (test.args == nil || test.args[0] == "--host-root") {
			continue
		}
		stdout, stderr, err := runCommand(t.Context(), t, mixed, append([]string{"devices"}, test.args...)...)
		out := stderr + stdout
		testutil.CheckError(t, name, err, test.err)
		if !strings.Contains(out, test.want) || err != nil && out != "" {
			t.Errorf("%s: the output is %q, want %q", name, out, test.want)
		}
	}
}

// TestResources: a report has the resource with which the advertiser offers the GPU. The kubelet
// injects GPUs of one resource. Linux containers need a device node.
func TestResources(t *testing.T) {
	t.Parallel()
	devices := []discovery.Device{{InstanceID: "C", SupportsCompute: true}, {InstanceID: "D", SupportsDisplay: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg"}}}}
	for name, test := range map[string]struct {
		injection policy.Injection
		nodeOS    string
		want      string // why the first GPU is not offered
	}{
		"any node":          {policy.InjectByNRI, "", ""},
		"kubelet injection": {policy.InjectByKubelet, "", "with injection: kubelet, "},
		"Linux":             {policy.InjectByNRI, "linux", "it has no device node"},
	} {
		p := policy.Default()
		p.Injection = test.injection
		reports := newGPUReports(resources.Match(devices, p, test.nodeOS))
		if got := reports[0].NotOffered; !strings.HasPrefix(got, test.want) || (got == "") != (test.want == "") {
			t.Errorf("%s: it is not offered because %q, want %q", name, got, test.want)
		}
		if reports[1].Resource == "" {
			t.Errorf("%s: the other GPU is not offered", name)
		}
	}
}
