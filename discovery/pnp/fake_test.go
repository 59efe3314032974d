package pnp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"unicode/utf16"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/win32"
)

// fakeSystem is a Windows in memory.
type fakeSystem struct {
	snapshot Snapshot
	err      error
	// queries counts queries of DXCore.
	queries int
}

func (f *fakeSystem) read(ctx context.Context, wanted func(string) bool, withDXCore bool) (Snapshot, error) {
	s := f.snapshot
	s.Devices = slices.DeleteFunc(slices.Clone(s.Devices), func(p Properties) bool { return !wanted(p.InstanceID) })
	if withDXCore {
		f.queries++
	} else {
		s.Adapters, s.DXCoreErr = nil, errNotQueried
	}
	return s, errors.Join(f.err, ctx.Err())
}

// utf16le encodes text without a terminator.
func utf16le(text string) []byte {
	var data []byte
	for _, unit := range utf16.Encode([]rune(text)) {
		data = binary.LittleEndian.AppendUint16(data, unit)
	}
	return data
}

// multi returns a REG_MULTI_SZ value of subkey.
func multi(subkey, name string, texts ...string) win32.RegistryValue {
	var data []byte
	for _, text := range texts {
		data = append(data, utf16le(text+"\x00")...)
	}
	return win32.RegistryValue{Subkey: subkey, Name: name, Type: regMultiString, Data: append(data, 0, 0)}
}

const displayKey = `{4d36e968-e325-11ce-bfc1-08002be10318}\`

const g4dnStore = `C:\Windows\System32\DriverStore\FileRepository\nvgridsw_aws.inf_amd64_1b50ef32b191cff1`

// g4dnValues are some of the driver key's values of a T4 in an AWS g4dn node, in the INF's order.
func g4dnValues() []win32.RegistryValue {
	const new64, new32 = "CopyToVmWhenNewer", "CopyToVmWhenNewerWow64"
	umd := g4dnStore + `\nvldumdx.dll`
	return []win32.RegistryValue{
		multi("", "UserModeDriverName", umd, umd, umd, umd),
		multi(new64, "file08", "vulkan-1-x64.dll", "vulkan-1.dll"),
		multi(new64, "file02", "nvcuda_loader64.dll", "nvcuda.dll"),
		multi(new64, "file04", "nvEncodeAPI64.dll", ""),
		multi(new32, "file01", "nvcuda_loader32.dll", "nvcuda.dll"),
		multi(new32, "file04", "nvapi.dll"),
	}
}

// t4 is the n-th T4 of a g4dn node.
func t4(n int) Properties {
	return Properties{
		InstanceID:    fmt.Sprintf(`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\3&13C0B0C5&1&%02X`, 0xD8+8*n),
		Description:   "NVIDIA Tesla T4",
		HardwareIDs:   []string{`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1`},
		LocationPaths: []string{fmt.Sprintf("PCIROOT(0)#PCI(%02X00)", 0x1B+n), "ACPI(_SB_)#ACPI(PCI0)"},
		LUID:          discovery.LUID(7048070 + 50056*n),
		DriverKey:     fmt.Sprintf(displayKey+`%04d`, n+1),
		DriverVersion: "31.0.15.5222", NUMANode: new(uint32(0)), BusNumber: new(uint32(0)),
		Address: new(uint32((0x1B + n) << 16)), Status: 0x0180600A, Values: g4dnValues(), PackageDir: g4dnStore,
	}
}

// full returns the adapter of a GPU that supports all of Direct3D.
func full(luid discovery.LUID) win32.Adapter {
	return win32.Adapter{
		LUID: uint64(luid), Description: "adapter", Hardware: true, Graphics: true, Compute: true,
		DedicatedMemory: 15 << 30,
	}
}

// basicRender is Microsoft's software renderer.
func basicRender() (Properties, win32.Adapter) {
	p := Properties{
		InstanceID: `ROOT\BASICRENDER\0000`, Description: "Microsoft Basic Render Driver", LUID: 0xB0,
		DriverKey: displayKey + `0000`, DriverVersion: "10.0.20348.1", Status: 0x0180200A, PackageDir: `C:\Windows\System32\DriverStore\FileRepository\basicrender.inf_amd64_1`,
	}
	return p, win32.Adapter{LUID: 0xB0, Graphics: true, Compute: true}
}

// frameBuffer is the frame buffer of AWS virtual machines.
func frameBuffer() Properties {
	return Properties{
		InstanceID: `PCI\VEN_1D0F&DEV_1111&SUBSYS_00000000&REV_00\3&13C0B0C5&0&18`, Description: "Microsoft Basic Display Adapter",
		LocationPaths: []string{"PCIROOT(0)#PCI(0300)"}, LUID: 0xFB, DriverKey: displayKey + `0005`, DriverVersion: "10.0.20348.1",
		BusNumber: new(uint32(0)), Address: new(uint32(3 << 16)), Status: 0x0180200A, PackageDir: `C:\Windows\System32\DriverStore\FileRepository\display.inf_amd64_1`,
	}
}

// node is a g4dn node with n GPUs.
func node(n int) Snapshot {
	render, software := basicRender()
	s := Snapshot{Devices: []Properties{render, frameBuffer()}, Adapters: []win32.Adapter{software}}
	for i := range n {
		s.Devices = append(s.Devices, t4(i))
		s.Adapters = append(s.Adapters, full(t4(i).LUID))
	}
	return s
}
