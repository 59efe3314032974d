package decision

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/ocispec"
)

// source is a list of devices, or an error, and records for which of them it is called.
type source struct {
	discovery.Static
	err   error
	found [][]string // by call
}

func (s *source) Devices(_ context.Context, instanceIDs ...string) ([]discovery.Device, error) {
	s.found = append(s.found, instanceIDs)
	return s.Static, s.err
}

const (
	path0 = "PCIROOT(0)#PCI(1B00)"
	path1 = "PCIROOT(0)#PCI(1C00)"
	path2 = "PCIROOT(0)#PCI(1D00)"
)

func windowsGPU(path string, luid discovery.LUID) discovery.Device {
	return discovery.Device{
		InstanceID: `PCI\VEN_10DE\` + path, LocationPath: path, LUID: luid, Description: "NVIDIA Tesla T4",
		SupportsDisplay: true, DriverStorePath: `C:\store`,
		System32: []discovery.RuntimeFile{{Source: path + ".dll", Destination: path + ".dll"}},
	}
}

// testDevices has two good GPUs, one that failed, and an adapter that can do nothing.
func testDevices() []discovery.Device {
	failed := windowsGPU(path2, 0xA2)
	failed.Health.Reason = "driver is not started (code 10)"
	basic := windowsGPU("", 0xB0)
	basic.InstanceID, basic.SupportsDisplay = `ROOT\BASICRENDER\0000`, false
	return []discovery.Device{windowsGPU(path0, 0xA0), windowsGPU(path1, 0x1_0000_00A1), failed, basic}
}

// decider returns a decider without records over devices, or over those of testDevices. Its policy honors
// environment variables.
func decider(devices ...discovery.Device) *Decider {
	if devices == nil {
		devices = testDevices()
	}
	return &Decider{
		Source: discovery.Static(devices), Policy: policy.Resolved{Policy: policy.Policy{Standalone: policy.Standalone{Environment: true}}},
		Store: allocation.OpenStore("/none"), Files: hostfiles.Assumed{}, Log: testutil.Quiet(),
	}
}

func gpusOf(edits ocispec.Edits) (devices, files []string) {
	for _, d := range edits.WindowsDevices {
		devices = append(devices, d.ID)
	}
	for _, m := range edits.Mounts {
		files = append(files, strings.TrimSuffix(strings.TrimPrefix(m.Source, `C:\store\`), ".dll"))
	}
	return devices, files
}

func TestSelect(t *testing.T) {
	t.Parallel()
	for request, want := range map[string][]string{
		"all": {path0, path1}, "ALL": {path0, path1}, "1": {path1}, "1, 0": {path1, path0}, "0,0," + path0: {path0},
		path0: {path0}, "pciroot(0)#pci(1c00)": {path1}, "0x00000001_0x000000A1": {path1}, "0xa0": {path0}, "160": {path0},
	} {
		var got []string
		devices, err := Select(request, testDevices())
		for _, d := range devices {
			got = append(got, d.LocationPath)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v, error %v", request, got, want, err)
		}
	}
	for want, requests := range map[error][]string{
		errNoSuchGPU:          {"4", "PCIROOT(9)", "0x7", "0x0", "-1", "0,9", "all,0", "0,none", "0,,1", ",", ""},
		discovery.ErrUnusable: {"2", "3"},
	} {
		for _, request := range requests {
			if devices, err := Select(request, testDevices()); devices != nil || !errors.Is(err, want) {
				t.Errorf("%s: %v, error %v, want %v", request, devices, err, want)
			}
		}
	}
	if _, err := Select("all", testDevices()[2:]); !errors.Is(err, errNoSuchGPU) {
		t.Errorf("all of no usable GPU: %v", err)
	}
}

// TestStandalone: an image can set the environment of a container, and no annotation.
func TestStandalone(t *testing.T) {
	t.Parallel()
	both := Container{Env: []string{"A=B", VisibleVariable + "= all "}, Annotations: map[string]string{VisibleAnnotation: "0"}}
	variable := Container{Env: both.Env}
	hyperV := both
	hyperV.HyperV = true
	unknown := &source{err: errors.New("inventory.yaml:3: no")}
	for name, test := range map[string]struct {
		c       Container
		source  discovery.Source
		ignores bool // environment variables
		want    []string
		err     error
	}{
		"variable":                     {c: variable, want: []string{path0, path1}},
		"annotation and variable":      {c: both, want: []string{path0}},
		"annotation, variable ignored": {c: both, ignores: true, want: []string{path0}},
		"variable ignored":             {c: variable, ignores: true, source: unknown},
		"Hyper-V":                      {c: hyperV, err: errHyperV},
		"no GPU":                       {c: both, source: discovery.Static{}, err: errNoSuchGPU},
		"GPUs not known":               {c: both, source: unknown, err: discovery.ErrUnknown},
	} {
		test.c.OS, test.c.ID = "windows", "c1"
		d := decider()
		d.Policy.Standalone.Environment = !test.ignores
		if test.source != nil {
			d.Source = test.source
		}
		edits, ok, err := decide(t.Context(), d, read(test.c))
		devices, files := gpusOf(edits)
		if !errors.Is(err, test.err) || ok != (test.want != nil) || !slices.Equal(devices, test.want) || !slices.Equal(files, test.want) {
			t.Errorf("%s: devices %v, files %v, ok %t, error %v", name, devices, files, ok, err)
		}
		if err != nil && !strings.HasPrefix(err.Error(), `directx-nri: container "c1" is not started: `) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestContainersThatAreNotTouched(t *testing.T) {
	t.Parallel()
	pod := &Pod{UID: "u"}
	for name, c := range map[string]Container{
		"no request":                 {Env: []string{"PATH=x"}},
		"empty request":              {Env: []string{VisibleVariable + "="}},
		"none":                       {Env: []string{VisibleVariable + "=None"}},
		"empty annotation":           {Env: []string{VisibleVariable + "=all"}, Annotations: map[string]string{VisibleAnnotation: ""}},
		"a pod's own variable":       {Pod: pod, Name: "main", Env: []string{VisibleVariable + "=all"}},
		"a pod's own annotation":     {Pod: pod, Name: "main", Annotations: map[string]string{VisibleAnnotation: "all"}},
		"a pod's similar annotation": {Pod: pod, Name: "main", Annotations: map[string]string{"directx.microsoft.com/allocation": "a", "directx.microsoft.com/allocations.a": "b"}},
		"an annotation handed on":    {Pod: pod, Name: "main", Annotations: map[string]string{allocation.AnnotationKey(display): "a"}},
		"a pod's request for files":  {Pod: pod, Name: "main", PodAnnotations: map[string]string{ExtraMountsAnnotation: `..\x`}},
		"other variable, Linux":      {OS: "linux", Env: []string{"directx_visible_devices=all"}},
		"variable that begins like":  {Env: []string{VisibleVariable + "_X=all"}},
	} {
		if c.OS == "" {
			c.OS = "windows"
		}
		if request, ok := ReadRequest(c); ok {
			t.Errorf("%s: %+v", name, request)
		}
	}
}

// read returns the request of c, also if it requests nothing.
func read(c Container) Request {
	request, _ := ReadRequest(c)
	return request
}

// TestSpecGPUs: a GPU by 'ctr run --device' gets the driver's files.
func TestSpecGPUs(t *testing.T) {
	t.Parallel()
	path := func(path string) specs.WindowsDevice {
		return specs.WindowsDevice{IDType: ocispec.IDTypeLocationPath, ID: path}
	}
	class := specs.WindowsDevice{IDType: "vpci-class-guid", ID: "{" + strings.ToLower(ocispec.DisplayClass) + "}"}
	unknown := &source{err: errors.New("inventory.yaml:3: no")}
	for name, test := range map[string]struct {
		visible        string // the annotation
		has            []specs.WindowsDevice
		hyperV         bool
		source         discovery.Source
		devices, files []string // nil if the container stays as it is
		err            error
	}{
		"device":                     {has: []specs.WindowsDevice{path(path1)}, devices: []string{path1}, files: []string{path1}},
		"device and another":         {visible: "0", has: []specs.WindowsDevice{path(path1)}, devices: []string{path0, path1}, files: []string{path0, path1}},
		"class":                      {has: []specs.WindowsDevice{class}, files: []string{path0, path1}},
		"class and a device":         {visible: "1", has: []specs.WindowsDevice{class}, files: []string{path1, path0}},
		"failed device":              {has: []specs.WindowsDevice{path(path2)}, devices: []string{path2}, files: []string{path2}},
		"GPU and another PCI device": {has: []specs.WindowsDevice{path("PCIROOT(0)#PCI(0200)"), path(path0)}, devices: []string{path0}, files: []string{path0}},
		"another PCI device":         {has: []specs.WindowsDevice{path("PCIROOT(0)#PCI(0200)")}},
		"GPUs not known":             {has: []specs.WindowsDevice{path(path0)}, source: unknown},
		"class, GPUs not known":      {has: []specs.WindowsDevice{class}, source: unknown, err: discovery.ErrUnknown},
		"Hyper-V":                    {has: []specs.WindowsDevice{path(path0)}, hyperV: true},
	} {
		c := Container{OS: "windows", ID: "c1", Devices: test.has, HyperV: test.hyperV}
		if test.visible != "" {
			c.Annotations = map[string]string{VisibleAnnotation: test.visible}
		}
		d := decider()
		if test.source != nil {
			d.Source = test.source
		}
		edits, ok, err := decide(t.Context(), d, read(c))
		devices, files := gpusOf(edits)
		if !errors.Is(err, test.err) || ok != (test.files != nil) || !slices.Equal(devices, test.devices) || !slices.Equal(files, test.files) {
			t.Errorf("%s: devices %v, files %v, ok %t, error %v", name, devices, files, ok, err)
		}
	}
}
