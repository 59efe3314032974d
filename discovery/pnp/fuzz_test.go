package pnp

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/win32"
	"github.com/directx-nri/directx-nri/internal/winpath"
)

// FuzzDevices checks the devices' invariants, that a bad device does not hide a good
// one, and that the order does not depend on Windows'.
func FuzzDevices(f *testing.F) {
	f.Add("ROOT\\X", "PCIROOT(0)", "text", g4dnStore, []byte("x.dll"), uint64(1), uint32(0), uint32(8), uint32(7), uint16(0xFFFF))
	f.Add("PCI\\VEN_10DE&DEV_1", "", "@a;b\n", "", utf16le("..\\x\x00y\x00\x00"), uint64(7048070), uint32(22), uint32(0x400), uint32(1), uint16(0))
	f.Add("x", "\x00", "\xff", "\\\\", utf16le(g4dnStore+"\\u.dll\x00"), uint64(0), uint32(0), uint32(0), uint32(7), uint16(0x0F0F))
	f.Add(`ROOT\BASICRENDER\0`, "", "", `C:\`, []byte{0, 0xD8}, uint64(2), uint32(99), uint32(9), uint32(0), uint16(1))
	f.Fuzz(func(t *testing.T, id, location, text, store string, data []byte, luid uint64, problem, status, kind uint32, bits uint16) {
		if id == "" {
			return
		}
		bit := func(n int) bool { return bits>>n&1 == 1 }
		p := Properties{
			InstanceID: id, Description: text, Manufacturer: text, HardwareIDs: []string{text, id}, LocationPaths: []string{location},
			DriverKey: text, DriverVersion: text, NUMANode: &problem, BusNumber: &status, Address: &kind, Status: status, Problem: problem, PackageDir: store,
			ReadErrors: []error{errors.New(text)}, PackageDirErr: errors.New(text),
		}
		for i, subkey := range append(append(system32Keys(), sysWOW64Keys()...), "", text) {
			p.Values = append(p.Values,
				win32.RegistryValue{Subkey: subkey, Name: text, Type: kind, Data: data},
				win32.RegistryValue{Subkey: subkey, Name: id, Type: regMultiString, Data: data[min(i, len(data)):]},
			)
		}
		p.Values = append(p.Values, win32.RegistryValue{Name: "UserModeDriverName", Type: kind, Data: data})
		if bit(0) {
			p.Class = win32.DisplayClass()
		}
		if bit(1) {
			p.Class = win32.ComputeAcceleratorClass()
		}
		if bit(2) {
			p.LUID = discovery.LUID(luid)
		}
		if bit(3) {
			p.DriverKey = ""
		}
		good := t4(1)
		s := Snapshot{
			Devices: []Properties{p, good},
			Adapters: []win32.Adapter{full(good.LUID), {
				LUID: luid, Description: text, Hardware: bit(4), Integrated: bit(5), Detachable: bit(6),
				D3D11Graphics: bit(7), D3D12Graphics: bit(8), D3D12CoreCompute: bit(9), D3D12GenericML: bit(11),
				DedicatedMemory: luid, ReadErrors: []error{errors.New(text)},
			}},
		}
		if bit(10) {
			s.Adapters, s.DXCoreErr = nil, errors.New(text)
		}
		devices := Devices(s)
		for _, d := range devices {
			checkDevice(t, d)
		}
		same := strings.EqualFold(id, good.InstanceID)
		if d, found := discovery.Find(devices, good.InstanceID); !same && (!found || !d.Health.OK() || d.Kind() != discovery.KindDisplay) {
			t.Errorf("good device: %+v", d)
		}
		if _, found := discovery.Find(devices, id); !found {
			t.Errorf("%q is not listed", id)
		}
		slices.Reverse(s.Devices)
		slices.Reverse(s.Adapters)
		reversed := Devices(s)
		if !same && !slices.EqualFunc(devices, reversed, func(a, b discovery.Device) bool { return a.InstanceID == b.InstanceID }) {
			t.Errorf("the order depends on Windows': %v and %v", devices, reversed)
		}
	})
}

func checkDevice(t *testing.T, d discovery.Device) {
	for _, text := range append([]string{d.Description, d.Manufacturer, d.DriverVersion, d.Health.Reason}, d.Notes...) {
		if strings.ContainsFunc(text, unicode.IsControl) || !utf8.ValidString(text) {
			t.Errorf("text %q", text)
		}
	}
	if d.Kind() != discovery.KindNone && d.Health.OK() && (d.InstanceID == "" || !winpath.IsAbs(d.DriverStorePath) || d.DriverKey == "") {
		t.Errorf("healthy: %+v", d)
	}
	for _, files := range [][]discovery.RuntimeFile{d.System32, d.SysWOW64} {
		seen := map[string]bool{}
		for _, file := range files {
			if !winpath.IsLocal(file.Source) || winpath.Clean(file.Source) != file.Source {
				t.Errorf("source %q", file.Source)
			}
			if !winpath.IsLocal(file.Destination) || strings.ContainsAny(file.Destination, `\/:`) {
				t.Errorf("destination %q", file.Destination)
			}
			if key := winpath.Key(file.Destination); key == "." || seen[key] {
				t.Errorf("duplicate destination %q", file.Destination)
			} else {
				seen[key] = true
			}
		}
	}
}

func BenchmarkDevices(b *testing.B) {
	s := node(64)
	for b.Loop() {
		if got := len(Devices(s)); got != 66 {
			b.Fatalf("%d devices", got)
		}
	}
}
