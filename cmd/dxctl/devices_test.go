package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

// isolated returns args without this machine's node policy, unless they have a state
// directory.
func isolated(t *testing.T, args []string) []string {
	t.Helper()
	uses := len(args) > 0 && slices.Contains([]string{"allocations", "capabilities", "devices", "doctor", "flags", "spec"}, args[0])
	if !uses || slices.Contains(args, "--state-dir") {
		return args
	}
	return slices.Concat(args[:1], []string{"--state-dir", filepath.Join(t.TempDir(), "none")}, args[1:])
}

// ask runs dxctl and returns what it printed.
func ask(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	command := newCommand()
	command.SetArgs(isolated(t, args))
	command.SilenceErrors, command.SilenceUsage = true, true
	var out bytes.Buffer
	command.SetOut(&out)
	command.SetErr(&out)
	err = command.ExecuteContext(t.Context())
	return out.String(), err
}

const twoGPUs = `apiVersion: directx.microsoft.com/v1alpha1
kind: Inventory
devices:
- instanceID: PCI\VEN_10DE&DEV_1EB8\1
  description: NVIDIA Tesla T4
  locationPath: PCIROOT(0)#PCI(1B00)
  luid: 0xC2F5
  display: true
  compute: true
  driver: {storePath: C:\Windows\System32\DriverStore\FileRepository\nv.inf_amd64_1}
  runtimeFiles: {system32: [{source: nvcuda_loader64.dll, destination: nvcuda.dll}]}
- instanceID: NPU
  description: A neural processor
  compute: true
  linux: {deviceNodes: [/dev/npu]}
`

func TestDevices(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "gpus.yaml")
	if err := os.WriteFile(file, []byte(twoGPUs), 0o600); err != nil {
		t.Fatal(err)
	}
	asJSON, err := ask(t, "devices", "--inventory", file, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(asJSON, `"PCI\\VEN_10DE&DEV_1EB8\\1"`) {
		t.Errorf("the instance ID cannot be read: %s", asJSON)
	}
	var devices []deviceReport
	if err := json.Unmarshal([]byte(asJSON), &devices); err != nil || len(devices) != 2 {
		t.Fatalf("%v: %s", err, asJSON)
	}
	want := deviceReport{
		Index: 0, InstanceID: `PCI\VEN_10DE&DEV_1EB8\1`, Description: "NVIDIA Tesla T4", Kind: "display", Display: true, Compute: true, Resource: "directx.microsoft.com/display", Replicas: 1,
		Health: "healthy", Vendor: "NVIDIA", LocationPath: "PCIROOT(0)#PCI(1B00)", LUID: "0x00000000_0x0000C2F5",
		DriverStorePath: `C:\Windows\System32\DriverStore\FileRepository\nv.inf_amd64_1`,
		System32:        []fileReport{{Source: "nvcuda_loader64.dll", Destination: "nvcuda.dll"}},
	}
	if diff := cmp.Diff(want, devices[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if d := devices[1]; d.Index != 1 || d.LUID != "" || d.Kind != "compute" || len(d.DeviceNodes) != 1 || d.DeviceNodes[0].Source != "/dev/npu" {
		t.Errorf("%+v", d)
	}

	// A configuration that names the inventory, as YAML.
	config := configFile(t, "inventory: "+file+"\n")
	asYAML, err := ask(t, "devices", "--config", config, "-o", "yaml")
	if err != nil {
		t.Fatal(err)
	}
	var again []deviceReport
	if err := yaml.Unmarshal([]byte(asYAML), &again); err != nil {
		t.Fatalf("%v: %s", err, asYAML)
	}
	if diff := cmp.Diff(devices, again); diff != "" {
		t.Errorf("JSON and YAML differ (-json +yaml):\n%s", diff)
	}
}

func TestDevicesRefusals(t *testing.T) {
	t.Parallel()
	none := filepath.Join(t.TempDir(), "none")
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no such form":      {[]string{"-o", "xml"}, `--output "xml": want table, wide, json, yaml or name`},
		"no such inventory": {[]string{"--inventory", none}, none},
		"watched as YAML":   {[]string{"--watch", "-o", "yaml"}, "--watch excludes --output yaml"},
		"one is watched":    {[]string{"--watch", "0"}, "--watch excludes the name of a GPU"},
		"two at once":       {[]string{"0", "1"}, "accepts at most 1 arg(s)"},
	} {
		if out, err := ask(t, append([]string{"devices"}, test.args...)...); err == nil || !strings.Contains(err.Error(), test.want) || out != "" {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
	if runtime.GOOS == "windows" {
		return
	}
	if out, err := ask(t, "devices"); err == nil || !strings.Contains(err.Error(), "--inventory") {
		t.Errorf("without an inventory: %v %s", err, out)
	}
}
