package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"directx-nri/cmd/dxctl/doctor"
	"directx-nri/internal/capabilities"
	"directx-nri/internal/containerdconfig"
	"directx-nri/internal/policy"
	"directx-nri/internal/win32"
)

func windowsFacts() doctor.Facts {
	const shim = `C:\shim\containerd-shim-directx-v1.exe`
	p := policy.Default()
	p.Assignment = policy.AssignAuto
	return doctor.Facts{
		OS: "windows", Config: doctor.Config{Policy: p},
		Windows: &capabilities.Capabilities{
			Windows: win32.Version{Major: 10, Build: 20348, Server: true, Product: "Windows Server 2022 Datacenter"},
			Schemas: []capabilities.Schema{{Major: 1, Minor: 0}, {Major: 2, Minor: 7}},
		},
		Containerd: doctor.Containerd{
			Version: "v1.7.35", ConfigPath: `C:\config.toml`,
			File:   containerdconfig.File{Handlers: []containerdconfig.Handler{{Name: "routed", RuntimeType: "io.containerd.runhcs.v1", RuntimePath: shim}, {Name: "other"}}},
			Loaded: []containerdconfig.Handler{{Name: "routed", RuntimePath: shim}, {Name: "removed", RuntimePath: shim}},
		},
		NRI:   doctor.NRI{PluginErr: errors.ErrUnsupported},
		Shims: []doctor.Shim{{Path: "none", Err: fs.ErrNotExist}, {Path: shim, Version: "1.0"}},
	}
}

func TestReportCapabilities(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*doctor.Facts)
		want   string // a line of the table
	}{
		"Windows":  {nil, "Windows         Windows Server 2022 Datacenter"},
		"schemas":  {nil, "HCS schemas     1.0, 2.7"},
		"auto":     {nil, "Assignment      location-path (assignmentMode: auto): HCS supports schema 2.7"},
		"by class": {func(f *doctor.Facts) { f.Config.Policy.Assignment = policy.AssignByClass }, "class-guid (assignmentMode: class-guid)"},
		"silent Windows": {func(f *doctor.Facts) {
			f.Windows = &capabilities.Capabilities{SchemasErr: fmt.Errorf("query: %w", context.DeadlineExceeded)}
		}, "unknown (assignmentMode: auto): query: context deadline exceeded"},
		"injection":       {func(f *doctor.Facts) { f.Config.Policy.Injection = policy.InjectByKubelet }, "Injection        kubelet"},
		"policy":          {func(f *doctor.Facts) { f.Config.Err = errors.New("torn") }, "Node policy      torn"},
		"NRI":             {nil, "NRI             off"},
		"NRI is unknown":  {func(f *doctor.Facts) { f.Containerd.FileErr = errors.New("config.toml:1:2") }, "NRI             unknown"},
		"NRI by plugin":   {func(f *doctor.Facts) { f.OS, f.NRI.PluginErr = "linux", nil }, "NRI             on"},
		"routed":          {nil, "Handler routed   uses the shim"},
		"not yet loaded":  {func(f *doctor.Facts) { f.Containerd.Loaded = nil }, "uses the shim when containerd has loaded its configuration"},
		"still loaded":    {nil, "Handler removed  uses the shim until containerd is restarted"},
		"containerd down": {func(f *doctor.Facts) { f.Containerd.Version, f.Containerd.Err = "", errors.New("refused") }, "containerd       unknown: refused"},
		"shim":            {nil, `C:\shim\containerd-shim-directx-v1.exe, version 1.0`},
		"no shim":         {func(f *doctor.Facts) { f.Shims = f.Shims[:1] }, "not installed"},
		"broken shim":     {func(f *doctor.Facts) { f.Shims[1].Err = errors.New("broken") }, "directx-v1.exe: broken"},
	} {
		f := windowsFacts()
		if test.change != nil {
			test.change(&f)
		}
		var out bytes.Buffer
		if err := reportCapabilities(f).print(&out); err != nil {
			t.Fatal(err)
		}
		// Columns are as wide as their content.
		squeeze := func(text string) string { return strings.Join(strings.Fields(text), " ") }
		if !strings.Contains(squeeze(out.String()), squeeze(test.want)) {
			t.Errorf("%s: no %q in\n%s", name, test.want, &out)
		}
	}
}

func TestReportStatus(t *testing.T) {
	t.Parallel()
	f := windowsFacts()
	if r := reportStatus(f); len(r.Handlers) != 3 || !r.Handlers[0].Loaded || r.Handlers[1].Routed || len(r.Problems) != 2 || !strings.Contains(strings.Join(r.Problems, " "), "Restart-Service containerd") {
		t.Errorf("%+v", r)
	}
}
