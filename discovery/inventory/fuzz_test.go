package inventory

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"directx-nri/discovery"
	"directx-nri/internal/winpath"
)

// FuzzParse holds that no file makes Parse panic, that every error names the
// file and a line of it, and that what is accepted keeps the promises that the
// rest of the project relies on.
func FuzzParse(f *testing.F) {
	samples, err := filepath.Glob("../../deployments/inventory/*.yaml")
	if err != nil || len(samples) == 0 {
		f.Fatal("no samples", err)
	}
	for _, name := range samples {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, s := range []string{
		"", "---", "a: b", head, fileWith("a", "b"), fileWith() + "---\n", "- *a", "&a [*a]", "{<<: {}}", head + "- &a {instanceID: *a}\n",
		"!%0a x", head + "- {instanceID: !!int \"a\\nb\"}",
		device("driver: {version: 1.2, storePath: 'C:\\a'}", "runtimeFiles: {system32: [a, {source: b, destination: c}]}"),
		device("linux: {deviceNodes: [/a, {path: /b, containerPath: /c}], libraries: [/d]}", "luid: 0x1_0x2", "vendorID: 0x10DE"), device("vendorID: 4318"), device("vendorID: '0x10DE'"),
		device("health: {reason: x}", "numaNode: 1", "dedicatedMemory: 1Ki", "locationPath: PCIROOT(0)#PCI(1)"),
		device("# comment", "display: true # comment", "", "# foot"), device("description: !!binary aGk="), device("? x", ": y"), "\xff\xfe", "a: |\n b\n", "a: 'b\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		devices, err := Parse("inv.yaml", data)
		if err != nil {
			checkProblems(t, data, devices, err)
			return
		}
		if devices == nil {
			t.Error("neither devices nor an error")
		}
		unique := map[string]bool{}
		claim := func(kind, key string) {
			if unique[kind+key] {
				t.Errorf("%s %q twice", kind, key)
			}
			unique[kind+key] = true
		}
		for _, d := range devices {
			claim("instance ID ", strings.ToLower(d.InstanceID))
			if d.LocationPath != "" {
				claim("location path ", strings.ToLower(d.LocationPath))
			}
			if d.LUID != 0 {
				claim("LUID ", d.LUID.String())
			}
			checkDevice(t, d)
		}
	})
}

func checkProblems(t *testing.T, data []byte, devices []discovery.Device, err error) {
	t.Helper()
	var problems Problems
	if devices != nil || !errors.As(err, &problems) || len(problems) == 0 {
		t.Fatalf("devices %v, error %#v", devices, err)
	}
	lines := strings.Count(string(data), "\n") + strings.Count(string(data), "\r") + strings.Count(string(data), "\u0085") +
		strings.Count(string(data), "\u2028") + strings.Count(string(data), "\u2029") + 1
	for i, p := range problems {
		if p.File != "inv.yaml" || p.Text == "" || p.Line < 1 || p.Line > lines+1 || i > 0 && p.Line < problems[i-1].Line {
			t.Errorf("problem %d of a file of %d lines: %+v", i, lines, p)
		}
		if strings.Contains(p.Text, "\n") {
			t.Errorf("problem of several lines: %q", p.Text)
		}
	}
}

func checkDevice(t *testing.T, d discovery.Device) {
	t.Helper()
	oneLine := func(s string) bool { return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl) }
	if d.InstanceID == "" || !oneLine(d.InstanceID) || utf8.RuneCountInString(d.InstanceID) > 200 || strings.Contains(d.InstanceID+":", "::") {
		t.Errorf("instance ID %q", d.InstanceID)
	}
	if !oneLine(d.Description) || !oneLine(d.Health.Reason) || !oneLine(d.LocationPath) || !oneLine(d.DriverVersion) || !oneLine(d.DriverStorePath) {
		t.Errorf("a text of several lines in %+v", d)
	}
	if strings.HasPrefix(strings.ToUpper(d.InstanceID), `PCI\VEN_10DE&`) && d.VendorID != discovery.VendorNVIDIA {
		t.Errorf("vendor %s of %q", d.VendorID, d.InstanceID)
	}
	if d.NUMANode != nil && *d.NUMANode < 0 {
		t.Errorf("NUMA node %d", *d.NUMANode)
	}
	if d.DriverStorePath != "" && (!winpath.IsAbs(d.DriverStorePath) || winpath.Clean(d.DriverStorePath) != d.DriverStorePath) {
		t.Errorf("driver store path %q", d.DriverStorePath)
	}
	for _, list := range [][]discovery.RuntimeFile{d.System32, d.SysWOW64} {
		if len(list) > 0 && d.DriverStorePath == "" {
			t.Error("runtime files without a driver store path")
		}
		places := map[string]bool{}
		for _, file := range list {
			below := winpath.Key(winpath.Join(d.DriverStorePath, file.Source))
			if !winpath.IsLocal(file.Source) || !winpath.IsLocal(file.Destination) || !strings.HasPrefix(below, winpath.Key(d.DriverStorePath)+`\`) || !oneLine(file.Source+file.Destination) {
				t.Errorf("runtime file %q", file)
			}
			if places[winpath.Key(file.Destination)] {
				t.Errorf("destination %q twice", file.Destination)
			}
			places[winpath.Key(file.Destination)] = true
		}
	}
	places := map[string]bool{}
	posix := func(host, container string) {
		for _, p := range []string{host, container} {
			if !path.IsAbs(p) || path.Clean(p) != p || p == "/" || !oneLine(p) {
				t.Errorf("path %q", p)
			}
		}
		if places[container] {
			t.Errorf("container path %q twice", container)
		}
		places[container] = true
	}
	for _, n := range d.DeviceNodes {
		posix(n.Path, n.ContainerPath)
	}
	for _, l := range d.Libraries {
		posix(l.Source, l.Destination)
	}
}
