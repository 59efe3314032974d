package pnp

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/win32"
)

func TestG4DN(t *testing.T) {
	t.Parallel()
	devices := Devices(node(4))
	if len(devices) != 6 {
		t.Fatalf("%d devices", len(devices))
	}
	for i, luid := range []discovery.LUID{7048070, 7098126, 7148182, 7198238} {
		p := t4(i)
		system32, _ := runtimeFiles(g4dnValues(), system32Keys()...)
		sysWOW64, _ := runtimeFiles(g4dnValues(), sysWOW64Keys()...)
		want := discovery.Device{
			InstanceID: p.InstanceID, Description: "NVIDIA Tesla T4", VendorID: pci.VendorNVIDIA,
			LocationPath: fmt.Sprintf("PCIROOT(0)#PCI(%02X00)", 0x1B+i), LUID: luid, DriverVersion: "31.0.15.5222",
			DriverStorePath: g4dnStore, DedicatedMemory: 15 << 30, NUMANode: new(int), BusNumber: p.BusNumber, Address: p.Address,
			SupportsDisplay: true, SupportsCompute: true, System32: system32, SysWOW64: sysWOW64,
		}
		if diff := cmp.Diff(want, devices[i]); diff != "" {
			t.Errorf("GPU %d (-want +got):\n%s", i, diff)
		}
	}
	if d := devices[4]; d.Kind() != discovery.KindNone || d.Software || !strings.Contains(d.Health.Reason, "install the manufacturer's driver") {
		t.Errorf("frame buffer: %+v", d)
	}
	if d := devices[5]; d.Kind() != discovery.KindNone || !d.Software || !d.Health.OK() || d.LUID != 0xB0 {
		t.Errorf("software renderer: %+v", d)
	}
}

// gpu returns a healthy GPU after edit.
func gpu(edit func(*Properties)) Properties {
	p := t4(0)
	edit(&p)
	return p
}

// stopped returns a GPU that Windows stopped because of a problem, after edit.
func stopped(problem uint32, edit func(*Properties)) Properties {
	return gpu(func(r *Properties) {
		r.Status, r.Problem, r.LUID = 0x01806400, problem, 0
		edit(r)
	})
}

func TestDevices(t *testing.T) {
	t.Parallel()
	luid := t4(0).LUID
	adapter := func(edit func(*win32.Adapter)) []win32.Adapter {
		a := full(luid)
		edit(&a)
		return []win32.Adapter{a}
	}
	whole := adapter(func(*win32.Adapter) {})
	same := gpu(func(*Properties) {})
	noDXCore := errors.New("dxcore.dll is\r\nnot there")
	for name, test := range map[string]struct {
		p         Properties
		adapters  []win32.Adapter
		dxcoreErr error
		kind      discovery.Kind
		compute   bool
		reason    string // part of the reason, "" for a healthy device
		note      string // part of a note, "" for no notes
		check     func(discovery.Device) bool
	}{
		"all of Direct3D": {p: same, adapters: whole, kind: discovery.KindDisplay, compute: true},
		"graphics without compute": {
			p: same, adapters: adapter(func(a *win32.Adapter) { a.Compute = false }), kind: discovery.KindDisplay,
		},
		"compute-only neural processor": {
			p:        gpu(func(r *Properties) { r.ComputeClass = true }),
			adapters: adapter(func(a *win32.Adapter) { a.Graphics = false }), kind: discovery.KindCompute, compute: true,
		},
		"neural processor for machine learning": {
			p: gpu(func(r *Properties) { r.ComputeClass = true }), adapters: adapter(func(a *win32.Adapter) { a.Graphics, a.Compute, a.MachineLearning = false, false, true }),
			kind: discovery.KindCompute, compute: true, check: func(d discovery.Device) bool { return d.MachineLearningOnly },
		},
		"GPU with machine learning": {
			p: same, adapters: adapter(func(a *win32.Adapter) { a.MachineLearning = true }), kind: discovery.KindDisplay, compute: true,
			check: func(d discovery.Device) bool { return !d.MachineLearningOnly },
		},
		"vendor by a hardware ID": {
			p: gpu(func(r *Properties) {
				r.InstanceID, r.HardwareIDs = `VPCI\{1}\1`, []string{`VPCI\X`, `pci\ven_8086&dev_56C0`}
			}), adapters: whole, kind: discovery.KindDisplay, compute: true,
			check: func(d discovery.Device) bool { return d.VendorID == pci.VendorIntel },
		},
		"integrated": {
			p: same, adapters: adapter(func(a *win32.Adapter) { a.Integrated, a.DedicatedMemory = true, 128<<20 }), kind: discovery.KindDisplay, compute: true,
			check: func(d discovery.Device) bool { return d.Integrated && !d.Detachable && d.DedicatedMemory == 128<<20 },
		},
		"virtual function of a partitioned GPU": {
			p: gpu(func(r *Properties) {
				r.InstanceID, r.LocationPaths = `PCI\VEN_10DE&DEV_2237&SUBSYS_14AD10DE&REV_A1\5&1&0&0`, []string{"VMBUS(1)#PCI(0000)"}
			}),
			adapters: whole, kind: discovery.KindDisplay, compute: true,
		},
		"unread property": {
			p: gpu(func(r *Properties) { r.ReadErrors = []error{errors.New("numa\nnode: 5")} }), adapters: whole, kind: discovery.KindDisplay, compute: true, note: "numa node: 5",
		},
		"no description": {
			p: gpu(func(r *Properties) { r.Description = "" }), adapters: whole, kind: discovery.KindDisplay, compute: true,
			check: func(d discovery.Device) bool { return d.Description == "adapter" },
		},
		"skipped runtime file": {
			p: gpu(func(r *Properties) { r.Values = append(r.Values, multi("CopyToVmWhenNewer", "z", `..\x`)) }), adapters: whole, kind: discovery.KindDisplay, compute: true, note: `..`,
		},
		"unknown NUMA node": {
			p: gpu(func(r *Properties) { r.NUMANode = new(uint32(0xFFFFFFFF)) }), adapters: whole, kind: discovery.KindDisplay, compute: true,
			check: func(d discovery.Device) bool { return d.NUMANode == nil },
		},

		"disabled": {p: stopped(22, func(*Properties) {}), kind: discovery.KindDisplay, reason: "it is disabled (problem code 22)"},
		"disabled neural processor": {
			p: stopped(22, func(r *Properties) { r.ComputeClass = true }), kind: discovery.KindCompute, compute: true, reason: "problem code 22",
		},
		"no driver, with code": {
			p: stopped(28, func(r *Properties) { r.DriverKey, r.Values, r.PackageDir = "", nil, "" }), kind: discovery.KindDisplay, reason: "it has no driver (problem code 28)",
		},
		"failed after its start, with an adapter left": {
			p: gpu(func(r *Properties) { r.Status, r.Problem = 0x01806400, 43 }), adapters: whole, kind: discovery.KindDisplay, compute: true, reason: "problem code 43",
		},
		"unknown code":   {p: gpu(func(r *Properties) { r.Problem = 99 }), adapters: whole, kind: discovery.KindDisplay, compute: true, reason: "problem code 99"},
		"not started":    {p: gpu(func(r *Properties) { r.Status = 0x01802000 }), adapters: whole, kind: discovery.KindDisplay, compute: true, reason: "not started"},
		"unknown status": {p: gpu(func(r *Properties) { r.Status = 0 }), adapters: whole, kind: discovery.KindDisplay, compute: true, note: "whether it is started"},
		"driver directories differ": {
			p: gpu(func(r *Properties) { r.PackageDir += "x" }), adapters: whole, kind: discovery.KindDisplay, compute: true, note: "its INF is in",
			check: func(d discovery.Device) bool { return d.DriverStorePath == g4dnStore },
		},
		"driver directory unknown": {
			p: gpu(func(r *Properties) { r.PackageDir, r.Values = "", nil }), adapters: whole, kind: discovery.KindDisplay, compute: true, reason: "reinstall the driver",
		},
		"unread list of files": {
			p:        gpu(func(r *Properties) { r.ValuesErr = errors.New("CopyToVmOverwrite:\naccess is denied") }),
			adapters: whole, kind: discovery.KindDisplay, compute: true, reason: "CopyToVmOverwrite: access is denied",
		},
		"DXCore does not list it": {
			p: gpu(func(r *Properties) { r.LUID = 1 }), reason: "DXCore does not list it",
		},
		"unknown LUID":                 {p: gpu(func(r *Properties) { r.LUID = 0 }), adapters: whole, kind: discovery.KindDisplay, note: "DXCore adapter is unknown"},
		"no LUID, no user-mode driver": {p: gpu(func(r *Properties) { r.LUID, r.Values = 0, nil }), adapters: whole, reason: "no user-mode driver", note: "DXCore adapter is unknown"},
		"unknown LUID, all adapters have devices": {
			p: gpu(func(r *Properties) { r.LUID = 0 }), reason: "TCC mode",
		},
		"unknown LUID of device and adapter": {
			p: gpu(func(r *Properties) { r.LUID = 0 }), adapters: []win32.Adapter{{ReadErrors: []error{errors.New("LUID")}}}, kind: discovery.KindDisplay, note: "DXCore adapter is unknown",
		},
		"without DXCore": {p: same, dxcoreErr: noDXCore, kind: discovery.KindDisplay, note: "dxcore.dll is not there"},
		"without DXCore, compute": {p: gpu(func(r *Properties) { r.ComputeClass = true }),
			dxcoreErr: noDXCore, kind: discovery.KindCompute, compute: true, note: "dxcore.dll"},
		"without DXCore, frame buffer with a runtime file UserModeDriverName": {
			p: func() Properties {
				p := frameBuffer()
				p.Values = []win32.RegistryValue{multi("CopyToVmOverwrite", "UserModeDriverName", "x.dll")}
				return p
			}(),
			dxcoreErr: noDXCore, reason: "no user-mode driver", note: "dxcore.dll",
		},
		"without DXCore, virtual": {p: gpu(func(r *Properties) { r.LocationPaths = nil }), dxcoreErr: noDXCore, note: "dxcore.dll"},
		"without DXCore, software": {
			p:         func() Properties { p, _ := basicRender(); return p }(),
			dxcoreErr: noDXCore, check: func(d discovery.Device) bool { return d.Software },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other := t4(3)
			s := Snapshot{Devices: []Properties{test.p, other}, Adapters: append(test.adapters, full(other.LUID)), DXCoreErr: test.dxcoreErr}
			if s.DXCoreErr != nil {
				s.Adapters = nil
			}
			devices := Devices(s)
			d, found := discovery.Find(devices, test.p.InstanceID)
			if !found {
				t.Fatalf("not in %+v", devices)
			}
			if d.Kind() != test.kind || d.SupportsCompute != test.compute {
				t.Errorf("kind %q, compute %t; want %q, %t", d.Kind(), d.SupportsCompute, test.kind, test.compute)
			}
			if d.Health.OK() != (test.reason == "") || !strings.Contains(d.Health.Reason, test.reason) {
				t.Errorf("health %q, want %q", d.Health, test.reason)
			}
			notes := strings.Join(d.Notes, "; ")
			if (notes == "") != (test.note == "") || !strings.Contains(notes, test.note) {
				t.Errorf("notes %q, want %q", d.Notes, test.note)
			}
			if strings.ContainsAny(notes, "\r\n") {
				t.Errorf("notes %q, want one line each", d.Notes)
			}
			if test.check != nil && !test.check(d) {
				t.Errorf("%+v", d)
			}
			// A bad device does not hide others.
			if good, found := discovery.Find(devices, other.InstanceID); !found || !good.Health.OK() || good.Kind() != discovery.KindDisplay {
				t.Errorf("other device: %+v", good)
			}
		})
	}
}

// The order does not depend on Windows'.
func TestOrder(t *testing.T) {
	t.Parallel()
	place := func(id string, bus, address *uint32) Properties {
		return gpu(func(r *Properties) { r.InstanceID, r.BusNumber, r.Address = id, bus, address })
	}
	one, two := new(uint32(1)), new(uint32(2))
	list := []Properties{
		frameBuffer(), place("F", nil, nil), place("E", nil, one), place("C", two, one), place("B", one, two), place("D", two, nil), place("A", one, one), place("G", nil, nil),
	}
	for range list {
		list = append(list[1:], list[0])
		var got []string
		for _, d := range Devices(Snapshot{Devices: list, Adapters: []win32.Adapter{full(t4(0).LUID)}}) {
			got = append(got, d.InstanceID)
		}
		if diff := cmp.Diff([]string{"A", "B", "C", "D", "E", "F", "G", frameBuffer().InstanceID}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}
