package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"directx-nri/internal/capabilities"
	"directx-nri/internal/win32"
)

// ask runs dxctl and returns what it printed.
func ask(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	command := newCommand()
	command.SetArgs(args)
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
	folder := t.TempDir()
	file := filepath.Join(folder, "gpus.yaml")
	if err := os.WriteFile(file, []byte(twoGPUs), 0o600); err != nil {
		t.Fatal(err)
	}
	asJSON, err := ask(t, "devices", "--inventory", file, "--shim-config", filepath.Join(folder, "none"), "-o", "json")
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
		Index: 0, InstanceID: `PCI\VEN_10DE&DEV_1EB8\1`, Description: "NVIDIA Tesla T4", Kind: "display", Display: true, Compute: true,
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

	// The shim's configuration names the inventory too, and YAML says the same.
	if err := os.Chmod(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(folder, "config.yaml")
	text := "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\ninventory: " + file + "\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	asYAML, err := ask(t, "devices", "--shim-config", config, "-o", "yaml")
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
		"no such form":      {[]string{"-o", "xml"}, `--output "xml" is none of table, wide, json, yaml or name`},
		"no such inventory": {[]string{"--inventory", none}, none},
		"watched as YAML":   {[]string{"--watch", "-o", "yaml"}, "--watch has no form yaml"},
		"one is watched":    {[]string{"--watch", "0"}, "--watch follows all GPUs"},
		"two at once":       {[]string{"0", "1"}, "accepts at most 1 arg(s)"},
		"no such root":      {[]string{"--host-root", none}, "--host-root: "},
	} {
		if out, err := ask(t, append([]string{"devices", "--shim-config", none}, test.args...)...); err == nil || !strings.Contains(err.Error(), test.want) || out != "" {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
	if runtime.GOOS == "windows" {
		return
	}
	if out, err := ask(t, "devices", "--shim-config", none); err == nil || !strings.Contains(err.Error(), "--inventory") {
		t.Errorf("without an inventory: %v %s", err, out)
	}
}

func TestCapabilities(t *testing.T) {
	t.Parallel()
	server := win32.Version{Major: 10, Build: 20348, Server: true, Product: "Windows Server 2022 Datacenter"}
	good := reportCapabilities(capabilities.Capabilities{Windows: server, Schemas: []capabilities.Schema{{Major: 1, Minor: 0}, {Major: 2, Minor: 7}}})
	if good.Assignment != assignByPath || !slices.Equal(good.Schemas, []string{"1.0", "2.7"}) || good.HCSError != "" || good.Build != 20348 || !good.Server {
		t.Errorf("%+v", good)
	}
	old := reportCapabilities(capabilities.Capabilities{Windows: win32.Version{Build: 17763}, SchemasErr: errors.New("no HCS")})
	if old.Assignment != assignByClass || old.HCSError != "no HCS" || old.Reason == "" {
		t.Errorf("%+v", old)
	}
}
