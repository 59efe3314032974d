//go:build linux

package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

const inventoryHead = "apiVersion: directx.microsoft.com/v1alpha1\nkind: Inventory\ndevices:\n"

// generate runs 'dxctl cdi generate' for an inventory.
func generate(t *testing.T, devices string, args ...string) (output string, err error) {
	t.Helper()
	inventory := privateFile(t, "gpus.yaml", inventoryHead+devices)
	return runCLI(t, append([]string{"cdi", "generate", "--inventory", inventory, "--state-dir", t.TempDir()}, args...)...)
}

// TestGenerateCDI checks the text of a specification. The suite gives it to the runtimes.
func TestGenerateCDI(t *testing.T) {
	t.Parallel()
	library := privateFile(t, "libd3d12.so", "")
	gpus := `- {instanceID: BROKEN, display: true, health: {reason: failed}, linux: {deviceNodes: [/dev/full]}}
- {instanceID: 'pci-0000:01:00.0', display: true, linux: {deviceNodes: [{path: /dev/null, containerPath: /dev/dxg}]}}
- {instanceID: 'GPU\b', description: Radeon, vendorID: amd, luid: 0x0_0x1, compute: true, linux: {deviceNodes: [/dev/zero], libraries: [{source: ` + library + `, destination: /usr/lib/libd3d12.so}]}}
`
	file := filepath.Join(t.TempDir(), "cdi", "directx-nri.yaml")
	printed, err := generate(t, gpus)
	testutil.NoError(t, err)
	// The owner of a device node depends on the user namespace.
	owners := regexp.MustCompile(`([ug]id): \d+`)
	golden(t, "cdi", owners.ReplaceAllString(strings.ReplaceAll(printed, library, "LIBRARY"), "$1: 0"))
	o := gpuSelection{Inventory: privateFile(t, "gpus.yaml", inventoryHead+gpus), StateDir: t.TempDir()}
	spec, _, err := cdiSpec(t.Context(), &o, io.Discard)
	testutil.NoError(t, err)
	if oldest, err := cdispec.MinimumRequiredVersion(spec); err != nil || oldest != spec.Version {
		t.Errorf("it has version %s and needs %s: %v", spec.Version, oldest, err)
	}
	if out, err := generate(t, gpus, "--file", file); err != nil || out != "wrote "+file+" with the devices 1, pci-0000:01:00.0, 2, GPU-b, all\n" {
		t.Fatalf("%q %v", out, err)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != printed {
		t.Errorf("the file differs from what is printed: %v\n%s", err, data)
	}
	old := time.Unix(1e9, 0)
	testutil.NoError(t, os.Chtimes(file, old, old))
	if out, err := generate(t, gpus, "--file", file); err != nil || out != "" {
		t.Errorf("an equal specification: %q %v", out, err)
	}
	if info, err := os.Stat(file); err != nil || !info.ModTime().Equal(old) {
		t.Errorf("an equal file is written again: %v", err)
	}
}

func TestGenerateCDIErrors(t *testing.T) {
	t.Parallel()
	const gpu = "- {instanceID: ID, display: true, linux: {deviceNodes: [/dev/null]}}\n"
	for name, test := range map[string]struct {
		devices string
		args    []string
		want    string
	}{
		"no GPU":          {devices: strings.Replace(gpu, "display", "health: {reason: failed}, display", 1), want: "no GPU of this node"},
		"an index":        {devices: strings.Replace(gpu, "ID,", "'0',", 1), want: `"0" is empty or not unique`},
		"no name":         {devices: strings.Replace(gpu, "ID,", "'{}',", 1), want: `"" is empty or not unique`},
		"a file of JSON":  {devices: gpu, args: []string{"--file", "x.json"}, want: "does not end with .yaml"},
		"no such file":    {devices: gpu, args: []string{"--file", "/dev/null/x.yaml"}, want: "not a directory"},
		"assumed, a root": {devices: gpu, args: []string{"--assume-files", "--host-root", "/"}, want: "[assume-files host-root]"},
	} {
		_, err := generate(t, test.devices, test.args...)
		testutil.CheckError(t, name, err, test.want)
	}
}

func TestCDIName(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"pci-0000:01:00.0":                        "pci-0000:01:00.0",
		`PCI\VEN_10DE&DEV_1EB8\4&1CFCA9AB&0&00D8`: "PCI-VEN_10DE-DEV_1EB8-4-1CFCA9AB-0-00D8",
		"{vmbus}": "vmbus",
		"Größe":   "Gr--e",
	} {
		if got := cdiName(text); got != want {
			t.Errorf("cdiName(%q) = %q, want %q", text, got, want)
		}
	}
}
