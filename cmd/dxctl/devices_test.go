package main

import (
	"bytes"
	"context"
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
	"directx-nri/internal/config"
	"directx-nri/internal/win32"
)

// ask runs dxctl and returns what it printed.
func ask(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	command := newCommand()
	command.SetArgs(ofNoNode(args))
	command.SilenceErrors, command.SilenceUsage = true, true
	var out bytes.Buffer
	command.SetOut(&out)
	command.SetErr(&out)
	err = command.ExecuteContext(t.Context())
	return out.String(), err
}

// ofNoNode returns args with this machine's own configuration left out of it, unless
// they name one.
func ofNoNode(args []string) []string {
	named := func(arg string) bool {
		return strings.HasPrefix(arg, "--config") || strings.HasPrefix(arg, "--shim-config")
	}
	asks := len(args) > 0 && slices.Contains([]string{"allocations", "capabilities", "devices", "flags", "spec"}, args[0])
	if !asks || slices.ContainsFunc(args, named) {
		return args
	}
	flag := "--shim-config="
	return slices.Concat(args[:1], []string{flag}, args[1:])
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

	// The shim's configuration names the inventory too, and YAML says the same.
	if err := os.Chmod(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	settings := filepath.Join(folder, "config.yaml")
	text := "apiVersion: directx.microsoft.com/v1alpha1\nkind: Configuration\ninventory: " + file + "\n"
	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	asYAML, err := ask(t, "devices", "--config", settings, "-o", "yaml")
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
	good := reportWindows(capabilities.Capabilities{Windows: server, Schemas: []capabilities.Schema{{Major: 1, Minor: 0}, {Major: 2, Minor: 7}}})
	if !slices.Equal(good.Schemas, []string{"1.0", "2.7"}) || good.HCSError != "" || good.Build != 20348 || !good.Server {
		t.Errorf("%+v", good)
	}
	old := reportWindows(capabilities.Capabilities{Windows: win32.Version{Build: 17763}, SchemasErr: errors.New("no HCS")})
	if old.HCSError != "no HCS" {
		t.Errorf("%+v", old)
	}
}

// What the configuration says counts more than what Windows can do.
func TestConfiguredCapabilities(t *testing.T) {
	t.Parallel()
	able := &capabilities.Capabilities{Windows: win32.Version{Build: 20348}, BuildTells: true}
	for name, test := range map[string]struct {
		mode       config.Assignment
		injection  config.Injection
		assignment string
		reason     string
	}{
		"auto":    {config.AssignAuto, config.InjectByRuntime, "location-path", "20348"},
		"by word": {config.AssignByClass, config.InjectByKubelet, "class-guid", "assignmentMode: class-guid"},
	} {
		c := config.Default()
		c.ContainerOS, c.Assignment, c.Injection = "windows", test.mode, test.injection
		var r capabilitiesReport
		r.configured("config.yaml", c, errors.New("it is bad"), able)
		if r.Assignment != test.assignment || r.AssignmentMode != string(test.mode) || r.Injection != string(test.injection) || !strings.Contains(r.Reason, test.reason) || r.ConfigError != "it is bad" {
			t.Errorf("%s: %+v", name, r)
		}
	}
	c := config.Default()
	c.ContainerOS = "windows"
	var r capabilitiesReport
	if r.configured("config.yaml", c, nil, &capabilities.Capabilities{SchemasErr: context.DeadlineExceeded}); r.Assignment != assignUnknown {
		t.Errorf("a Windows that does not answer: %+v", r)
	}
}
