package decision

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/ocispec"
)

// source is a list of devices that cannot be read if listErr is set, and records
// which of them are looked up.
type source struct {
	discovery.Static
	listErr, findErr error
	found            [][]string // by call
}

func (s *source) Devices(ctx context.Context) ([]discovery.Device, error) {
	if s.listErr != nil {
		return nil, s.listErr
	}
	return s.Static.Devices(ctx)
}

func (s *source) Find(ctx context.Context, instanceIDs []string) ([]discovery.Device, error) {
	s.found = append(s.found, instanceIDs)
	if s.findErr != nil {
		return nil, s.findErr
	}
	return s.Static.Find(ctx, instanceIDs)
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

func TestStandaloneGetsWhatItRequests(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		request, annotation string
		devices, files      []string
	}{
		"all that can be used":       {request: "all", devices: []string{path0, path1}, files: []string{path0, path1}},
		"in capitals":                {request: "ALL", devices: []string{path0, path1}, files: []string{path0, path1}},
		"by index":                   {request: "1", devices: []string{path1}, files: []string{path1}},
		"by indices, in their order": {request: "1, 0", devices: []string{path1, path0}, files: []string{path1, path0}},
		"the same twice":             {request: "0,0," + path0, devices: []string{path0}, files: []string{path0}},
		"by location path":           {request: path0, devices: []string{path0}, files: []string{path0}},
		"by location path, any case": {request: "pciroot(0)#pci(1c00)", devices: []string{path1}, files: []string{path1}},
		"by LUID":                    {request: "0x00000001_0x000000A1", devices: []string{path1}, files: []string{path1}},
		"by LUID as one number":      {request: "0xa0", devices: []string{path0}, files: []string{path0}},
		"annotation":                 {annotation: "0", devices: []string{path0}, files: []string{path0}},
		"annotation and variable":    {request: "all", annotation: "0", devices: []string{path0}, files: []string{path0}},
		"spaces around":              {request: "  0 ", devices: []string{path0}, files: []string{path0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := Container{OS: "windows", ID: "c1", Env: []string{"A=B", VisibleVariable + "=" + test.request}}
			if test.annotation != "" {
				c.Annotations = map[string]string{VisibleAnnotation: test.annotation}
			}
			request, ok := ReadRequest(c)
			if !ok {
				t.Error("no request was read")
			}
			edits, ok, err := decide(t.Context(), decider(), request)
			if err != nil || !ok {
				t.Fatalf("ok %t, error %v", ok, err)
			}
			devices, files := gpusOf(edits)
			if diff := cmp.Diff(test.devices, devices); diff != "" {
				t.Errorf("devices (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.files, files); diff != "" {
				t.Errorf("files (-want +got):\n%s", diff)
			}
		})
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

func TestStandaloneIsRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		c      Container
		source discovery.Source
		want   error
		says   []string
	}{
		"index too large":  {c: requesting("4"), want: errNoSuchGPU},
		"unknown path":     {c: requesting("PCIROOT(9)"), want: errNoSuchGPU},
		"unknown LUID":     {c: requesting("0x7"), want: errNoSuchGPU},
		"LUID 0":           {c: requesting("0x0"), want: errNoSuchGPU},
		"negative index":   {c: requesting("-1"), want: errNoSuchGPU},
		"good and unknown": {c: requesting("0,9"), want: errNoSuchGPU},
		"failed GPU":       {c: requesting("2"), want: discovery.ErrUnusable, says: []string{"code 10", path2}},
		"software adapter": {c: requesting("3"), want: discovery.ErrUnusable, says: []string{"neither graphics nor compute"}},
		"all in a list":    {c: requesting("all,0"), want: errNoSuchGPU},
		"none in a list":   {c: requesting("0,none"), want: errNoSuchGPU},
		"empty element":    {c: requesting("0,,1"), want: errNoSuchGPU},
		"only a comma":     {c: requesting(","), want: errNoSuchGPU},
		"all of no GPU":    {c: requesting("all"), source: discovery.Static{}, want: errNoSuchGPU},
		"Hyper-V":          {c: Container{HyperV: true, Env: []string{VisibleVariable + "=0"}}, want: errHyperV, says: []string{"process isolation"}},
		"GPUs not known": {c: requesting("all"), source: &source{listErr: errors.New("inventory.yaml:3: no")}, want: discovery.ErrUnknown,
			says: []string{"inventory.yaml:3"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.c.OS, test.c.ID = "windows", "c1"
			d := decider()
			if test.source != nil {
				d.Source = test.source
			}
			request, ok := ReadRequest(test.c)
			if !ok {
				t.Error("no request was read")
			}
			edits, ok, err := decide(t.Context(), d, request)
			if err == nil || !errors.Is(err, test.want) {
				t.Fatalf("ok %t, %+v, error %v; want %v", ok, edits, err, test.want)
			}
			for _, says := range append(test.says, `directx-nri: container "c1" is not started: `) {
				testutil.CheckError(t, "decide", err, says)
			}
			if strings.ContainsAny(errlog.Text(err), "\r\n") {
				t.Errorf("error %q", err)
			}
		})
	}
}

// An image can set the environment of a container.
func TestStandaloneEnvironment(t *testing.T) {
	t.Parallel()
	c := Container{OS: "linux", ID: "c1", Env: []string{VisibleVariable + "=0"}}
	for _, test := range []struct {
		annotations       map[string]string
		allowed, requests bool
	}{{nil, false, false}, {map[string]string{VisibleAnnotation: "0"}, false, true}, {nil, true, true}} {
		d := decider(discovery.Device{InstanceID: "A", SupportsDisplay: true, DeviceNodes: []discovery.DeviceNode{{Path: "/dev/dxg", ContainerPath: "/dev/dxg"}}})
		d.Policy.Standalone.Environment = test.allowed
		if !test.requests {
			d.Source = &source{listErr: errors.New("a container that requests nothing depends on no GPU")}
		}
		c.Annotations = test.annotations
		if _, ok, err := decide(t.Context(), d, read(c)); err != nil || ok != test.requests {
			t.Errorf("%+v: ok %t, error %v", test, ok, err)
		}
	}
}

// read returns the request of c, also if it requests nothing.
func read(c Container) Request {
	request, _ := ReadRequest(c)
	return request
}

func requesting(request string) Container {
	return Container{OS: "windows", ID: "c1", Env: []string{VisibleVariable + "=" + request}}
}
