package main

import (
	"bytes"
	"context"
	"encoding/json"
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
	routed := containerdconfig.Handler{Name: "routed", RuntimeType: "io.containerd.runhcs.v1", RuntimePath: shim}
	return doctor.Facts{
		OS: "windows", Config: doctor.Config{Policy: p},
		Windows: &capabilities.Capabilities{
			Windows: win32.Version{Build: 20348, Product: "Windows Server 2022 Datacenter"},
		},
		Containerd: doctor.Containerd{
			Version: "v1.7.35", ConfigPath: `C:\config.toml`,
			Handlers: doctor.Handlers("windows", []containerdconfig.Handler{routed, {Name: "other"}}, []containerdconfig.Handler{routed}),
		},
		Shims: []doctor.Shim{{Path: "none", Err: fs.ErrNotExist}, {Path: shim, Version: "1.0"}},
	}
}

func TestReportCapabilities(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*doctor.Facts)
		want   string // a line of the table
	}{
		"Windows":  {nil, "Windows Windows Server 2022 Datacenter"},
		"HCS":      {nil, "HCS answers"},
		"auto":     {nil, "Assignment location-path (assignmentMode: auto): Windows build 20348"},
		"by class": {func(f *doctor.Facts) { f.Config.Policy.Assignment = policy.AssignByClass }, "class-guid (assignmentMode: class-guid)"},
		"silent Windows": {func(f *doctor.Facts) {
			f.Windows.HCSErr = fmt.Errorf("query: %w", context.DeadlineExceeded)
		}, "HCS query: context deadline exceeded"},
		"injection":       {func(f *doctor.Facts) { f.Config.Policy.Injection = policy.InjectByKubelet }, "Injection kubelet"},
		"policy":          {func(f *doctor.Facts) { f.Config.Err = errors.New("torn") }, "Node policy torn"},
		"NRI":             {func(f *doctor.Facts) { f.Containerd.NRI = true }, "NRI yes"},
		"routed":          {nil, "routed yes no yes C:"},
		"not routed":      {nil, "other no no no - runtime handler other has"},
		"not eligible":    {nil, `runtime handler other has runtime_type ""`},
		"containerd down": {func(f *doctor.Facts) { f.Containerd.Version, f.Containerd.Err = "", errors.New("refused") }, "containerd refused"},
		"shim":            {nil, `C:\shim\containerd-shim-directx-v1.exe: 1.0`},
		"no shim":         {nil, "none: file does not exist"},
	} {
		f := windowsFacts()
		if test.change != nil {
			test.change(&f)
		}
		var out bytes.Buffer
		if err := reportCapabilities(f).print(&out, outputTable); err != nil {
			t.Fatal(err)
		}
		// Columns are as wide as their content.
		if !strings.Contains(strings.Join(strings.Fields(out.String()), " "), test.want) {
			t.Errorf("%s: no %q in\n%s", name, test.want, &out)
		}
	}
}

// TestFactsAsJSON checks that errors are printed as text.
func TestFactsAsJSON(t *testing.T) {
	t.Parallel()
	f := windowsFacts()
	doctor.AsText(&f.Shims[0].Err, &f.Config.Err)
	var out bytes.Buffer
	if err := reportCapabilities(f).print(&out, outputJSON); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Config map[string]any
		Shims  []struct{ Error string }
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got.Shims[0].Error != "file does not exist" || got.Config["error"] != nil {
		t.Errorf("%v\n%s", err, &out)
	}
}
