//go:build e2e && windows

package windows

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/testutil"
	"github.com/directx-nri/directx-nri/test/windows/bed"
)

// TestDiscovery changes the hardware of the prefix and checks the product's discovery. Its
// subtests share the hardware, and it runs before the parallel tests: services that they
// start make Wine remove the devices.
//
//nolint:paralleltest // See above.
func TestDiscovery(t *testing.T) {
	machine.NeedsDoubles(t, "hardware is plugged in")
	for _, part := range []part{
		{"four Tesla T4", testFourT4},
		{"kinds of devices", testKinds},
		{"without DXCore", testWithoutDXCore},
		{"containers", testLive},
		{"UUIDs", testUUIDs},
		{"what programs find", testProbe},
		{"builds of Windows", testBuilds},
		{"example programs", testExamples},
		{"unit tests", testUnits},
	} {
		t.Run(part.name, part.run)
	}
}

// t4Memory is in bytes.
const t4Memory = 15 << 30

// t4s returns the first n of four Tesla T4 of a g4dn instance of AWS.
func t4s(n int) []bed.GPU {
	gpus := make([]bed.GPU, n)
	for i := range gpus {
		slot := uint32(0x1b + i)
		gpus[i].Device = discovery.Device{
			InstanceID:      fmt.Sprintf(`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\3&13C0B0C5&1&%X`, slot<<3),
			Description:     "NVIDIA Tesla T4",
			VendorID:        pci.VendorNVIDIA,
			LocationPath:    fmt.Sprintf("PCIROOT(0)#PCI(%X00)", slot),
			LUID:            discovery.LUID(7048070 + 50056*i),
			DriverVersion:   "31.0.15.5222",
			DriverStorePath: bed.DriverStore + `\nvgridsw_aws.inf_amd64_1b50ef32b191cff1`,
			DedicatedMemory: t4Memory,
			NUMANode:        new(0),
			BusNumber:       new(uint32(0)),
			Address:         new(slot << 16),
			SupportsDisplay: true,
			SupportsCompute: true,
			System32: bed.Files("nvcudadebugger.dll", "nvcuda_loader64.dll=nvcuda.dll", "nvcuvid64.dll=nvcuvid.dll", "nvEncodeAPI64.dll",
				"nvapi64.dll", "nvml_loader.dll=nvml.dll", "OpenCL64.dll=OpenCL.dll", "vulkan-1-x64.dll=vulkan-1.dll"),
			SysWOW64: bed.Files("nvcuda_loader32.dll=nvcuda.dll", "nvcuvid32.dll=nvcuvid.dll", "nvEncodeAPI.dll", "nvapi.dll",
				"OpenCL32.dll=OpenCL.dll", "vulkan-1-x86.dll=vulkan-1.dll"),
		}
	}
	return gpus
}

// npu returns a device without graphics.
func npu() bed.GPU {
	return bed.GPU{Device: discovery.Device{
		InstanceID: `PCI\VEN_8086&DEV_7D1D&SUBSYS_0C8D1028&REV_04\3&11583659&0&58`, LocationPath: "PCIROOT(0)#PCI(0B00)",
		LUID:          0x1_0000_1000, // The upper half is not zero.
		DriverVersion: "1.2.3.4", DriverStorePath: bed.DriverStore + `\npu.inf_amd64_00`,
		SupportsCompute: true, MachineLearningOnly: true, Integrated: true, DedicatedMemory: 128 << 20,
		System32: bed.Files("npu64.dll=npu.dll"), SysWOW64: bed.Files("npu32.dll=npu.dll"),
	}}
}

// byID returns devices by instance ID, without the note that Wine has no SetupGetInfDriverStoreLocation.
func byID(t *testing.T, devices []discovery.Device) map[string]discovery.Device {
	t.Helper()
	found := map[string]discovery.Device{}
	for _, d := range devices {
		if _, twice := found[d.InstanceID]; twice {
			t.Errorf("%s is listed twice", d.InstanceID)
		}
		d.Notes = slices.DeleteFunc(d.Notes, func(note string) bool { return strings.Contains(note, "directory in the driver store is unknown") })
		if len(d.Notes) == 0 {
			d.Notes = nil
		}
		found[d.InstanceID] = d
	}
	return found
}

func testFourT4(t *testing.T) {
	gpus := t4s(4)
	machine.Plug(t, gpus...)
	want := map[string]discovery.Device{}
	for _, g := range gpus {
		want[g.InstanceID] = g.Device
	}
	if diff := cmp.Diff(want, byID(t, machine.Devices(t))); diff != "" {
		t.Errorf("devices (-want +got):\n%s", diff)
	}
}

// testKinds has devices and adapters that are read in different ways. Unit tests have all
// kinds of devices and runtime files.
func testKinds(t *testing.T) {
	gpus := t4s(3)
	gpus[0].MemoryUnread = true
	gpus[1].Odd = true
	gpus[2].DriverVersion, gpus[2].Status, gpus[2].Problem = "", bed.Stopped, bed.NoDriver
	npu := npu()
	machine.Plug(t, append(gpus, npu)...)
	found := byID(t, machine.Devices(t))
	want := map[string]struct {
		device       discovery.Device
		kind         discovery.Kind
		reason, note string
	}{
		gpus[0].InstanceID: {discovery.Device{LUID: gpus[0].LUID}, discovery.KindDisplay, "", "failed to read a"},
		gpus[1].InstanceID: {discovery.Device{}, discovery.KindNone, "location path", "failed to read a"},
		gpus[2].InstanceID: {discovery.Device{LUID: gpus[2].LUID}, discovery.KindDisplay, "28", ""},
		npu.InstanceID:     {discovery.Device{LUID: npu.LUID, MachineLearningOnly: true, Integrated: true, DedicatedMemory: npu.DedicatedMemory}, discovery.KindCompute, "", ""},
	}
	for id, test := range want {
		d := found[id]
		got := discovery.Device{LUID: d.LUID, DedicatedMemory: d.DedicatedMemory, Software: d.Software, Integrated: d.Integrated, MachineLearningOnly: d.MachineLearningOnly}
		if diff := cmp.Diff(test.device, got); diff != "" || d.Kind() != test.kind {
			t.Errorf("%s is of kind %q, want %q (-want +got):\n%s", id, d.Kind(), test.kind, diff)
		}
		if d.Health.OK() != (test.reason == "") || !strings.Contains(d.Health.Reason, test.reason) || !strings.Contains(strings.Join(d.Notes, "\n"), test.note) {
			t.Errorf("%s: health %q, notes %q; want %q and %q in them", id, d.Health.Reason, d.Notes, test.reason, test.note)
		}
	}
	if len(found) != len(want) {
		t.Errorf("%d devices are listed, want %d", len(found), len(want))
	}
}

func testWithoutDXCore(t *testing.T) {
	gpu, npu := t4s(1)[0], npu()
	machine.Plug(t, gpu, npu)
	found := byID(t, machine.DevicesWithoutDXCore(t))
	if len(found) != 2 {
		t.Errorf("the devices are %+v", found)
	}
	for _, want := range []bed.GPU{gpu, npu} {
		d := found[want.InstanceID]
		if d.Kind() != want.Kind() || !d.Health.OK() || d.DedicatedMemory != 0 || !slices.Equal(d.System32, want.System32) || !slices.Equal(d.SysWOW64, want.SysWOW64) {
			t.Errorf("the device is %+v, want it of kind %q by its class, with its files", d, want.Kind())
		}
		if notes := strings.Join(d.Notes, "\n"); !strings.Contains(notes, "DXCore") || !strings.Contains(notes, "memory") {
			t.Errorf("the notes of %s do not report what is unknown: %q", d.InstanceID, d.Notes)
		}
	}
}

// testLive has containers of GPUs that are discovered.
func testLive(t *testing.T) {
	n := start(t, bed.Options{Name: "live", Discover: true})
	old, other := n.GPUs[0], n.GPUs[1]
	record := n.Record(t, old.Replica(7))
	pod := n.RunPod(t, "live-pod")

	t.Run("a driver that is replaced", func(t *testing.T) {
		id := n.MustStartContainer(t, pod, n.NewAllocated("app", record), old)
		renewed := old
		renewed.DriverStorePath = bed.DriverStore + `\live0.inf_amd64_9999999999999999`
		renewed.System32, renewed.SysWOW64 = bed.Files("nvcuda_new64.dll=nvcuda.dll"), bed.Files("nvnew32.dll=nvnew.dll")
		machine.Plug(t, renewed, other)
		n.RemoveContainer(t, id)
		n.RemoveContainer(t, n.MustStartContainer(t, pod, n.NewAllocated("app", record), renewed))
	})
	t.Run("a GPU that is removed", func(t *testing.T) {
		machine.Plug(t, other)
		id, err := n.StartContainer(t, pod, n.NewAllocated("app", record))
		n.MustRefuse(t, id, err, `"app"`, old.InstanceID)
		id = "live-left"
		n.MustRunImage(t, id, bed.Visible("all")...)
		n.MustHave(t, id, other)
	})
}

// testUUIDs checks the UUIDs that nvidia-smi reports.
func testUUIDs(t *testing.T) {
	gpus := t4s(3)
	machine.Plug(t, gpus...)
	want := map[string]string{}
	for i, g := range gpus[:2] { // It does not report the last.
		gpus[i].UUID = fmt.Sprintf("GPU-8932f937-d72c-4106-c12f-20bd9faed9f%d", i)
		want[g.InstanceID] = gpus[i].UUID
	}
	for _, d := range machine.WithUUIDs(t, gpus[:2]...) {
		if d.UUID != want[d.InstanceID] || d.Kind() != discovery.KindDisplay || !d.Health.OK() {
			t.Errorf("it is found as %+v, want UUID %q", d, want[d.InstanceID])
		}
	}
}

// testProbe has programs that find GPUs of several kinds.
func testProbe(t *testing.T) {
	t4, broken, npu, software := t4s(2)[0], t4s(2)[1], npu(), t4s(1)[0]
	broken.NoDirect3D12 = true
	software.Software = true
	npu.Description, npu.MachineLearningOnly = "NPU", false // The double has no level of machine learning alone.
	const fails = "none of %d GPUs works here"
	for name, test := range map[string]struct {
		gpus      []bed.GPU
		want, err string
	}{
		"one of two works": {[]bed.GPU{t4, broken}, "✔ GPU         NVIDIA Tesla T4, LUID 0x00000000_0x006B8B86: works\n✘ GPU         NVIDIA Tesla T4, LUID 0x00000000_0x006C4F0E: D3D12CreateDevice: HRESULT 0x887A0004\n", ""},
		"compute-only":     {[]bed.GPU{npu}, "✔ GPU         NPU, LUID 0x00000001_0x00001000: works\n", ""},
		"none works":       {[]bed.GPU{broken}, "✘ GPU", fmt.Sprintf(fails, 1)},
		"software":         {[]bed.GPU{software}, "", fmt.Sprintf(fails, 0)},
	} {
		machine.Plug(t, test.gpus...)
		out, err := machine.Run(machine.Executable("dxctl.exe"), "probe")
		testutil.CheckError(t, name, err, test.err)
		gpus, libraries, _ := strings.Cut(out, "✔ library     C:\\windows\\System32\\dxcore.dll\n")
		if !strings.HasPrefix(gpus, test.want) || !strings.Contains(libraries, "- library     nvidia-smi.exe is not here\n") {
			t.Errorf("%s: %s", name, out)
		}
	}
}
