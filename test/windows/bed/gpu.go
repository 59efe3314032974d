//go:build e2e && windows

package bed

import (
	"fmt"
	"strings"
	"testing"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/allocation"
	"github.com/directx-nri/directx-nri/internal/testutil"
)

// GPU is a GPU of a node, in an inventory file or as hardware.
type GPU struct {
	discovery.Device
	// Status is Plug and Play's DN_ bits, Running if it is 0, and Problem its CM_PROB_ code.
	Status, Problem uint32
	// Odd is hardware whose location paths have a wrong type, and whose LUID is cut short.
	Odd bool
	// MemoryUnread is hardware whose memory DXCore fails to report.
	MemoryUnread bool
	// NoDirect3D12 is hardware with Direct3D 11 only.
	NoDirect3D12 bool
}

// DriverStore is the directory of Windows drivers.
const DriverStore = `C:\Windows\System32\DriverStore\FileRepository`

// missingPrefix begins the names of files that a driver lists and that do not exist.
const missingPrefix = "gone"

// Files returns runtime files from texts of the form SOURCE or SOURCE=DESTINATION.
func Files(texts ...string) (files []discovery.RuntimeFile) {
	for _, text := range texts {
		source, destination, renamed := strings.Cut(text, "=")
		if !renamed {
			destination = source
		}
		files = append(files, discovery.RuntimeFile{Source: source, Destination: destination})
	}
	return files
}

// NewGPUs returns two GPUs with different drivers, whose directories have names that begin
// with prefix. The paths of the second are unusual. Wine 8 does not resolve paths over 260
// characters (GetFinalPathNameByHandle).
func (m *Machine) NewGPUs(prefix string) []GPU {
	gpus := make([]GPU, 2)
	for i := range gpus {
		gpus[i].Device = discovery.Device{
			InstanceID:      fmt.Sprintf(`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\%s&%d`, prefix, i),
			Description:     "a test's GPU",
			LocationPath:    fmt.Sprintf("PCIROOT(0)#PCI(1%c00)", 'B'+i),
			LUID:            discovery.LUID(0xC001 + i),
			DriverVersion:   "31.0.15.5222",
			DriverStorePath: fmt.Sprintf(`%s\%s%d.inf_amd64_0f2a6b1c9d8e7354`, m.Store, prefix, i),
			SupportsDisplay: true,
			SupportsCompute: true,
		}
	}
	gpus[0].System32 = Files("nvcuda_loader64.dll=nvcuda.dll", "nvapi64.dll", `sub\nvml_loader.dll=nvml.dll`, "gone64.dll=gone.dll")
	gpus[0].SysWOW64 = Files("nvcuda_loader32.dll=nvcuda.dll", "gone32.dll=gone.dll")
	gpus[1].DriverStorePath = m.Store + `\` + prefix + ` Grafik Träger – 显卡 драйвер.inf_amd64_1`
	gpus[1].System32, gpus[1].SysWOW64 = Files("ein Treiber ä 卡.dll=treiber ä 卡.dll"), Files("amdhip32.dll")
	return gpus
}

// Replica returns the i-th replica of a GPU.
func (g GPU) Replica(i int) allocation.Replica {
	return allocation.Replica{ID: allocation.ReplicaID(allocation.GPUKey(g.InstanceID), i), InstanceID: g.InstanceID, UUID: g.UUID}
}

// Mounts returns the files of a container with the GPU: those that are listed and exist.
func (g GPU) Mounts() (mounts []Mapped) {
	for dir, files := range map[string][]discovery.RuntimeFile{"System32": g.System32, "SysWOW64": g.SysWOW64} {
		for _, f := range files {
			if !strings.HasPrefix(f.Source, missingPrefix) {
				mounts = append(mounts, g.File(f.Source, dir+`\`+f.Destination))
			}
		}
	}
	return mounts
}

// File returns a file of the GPU's driver in a container, with its path below C:\Windows.
func (g GPU) File(source, destination string) Mapped {
	return Mapped{HostPath: g.DriverStorePath + `\` + source, ContainerPath: `C:\Windows\` + destination, ReadOnly: true}
}

// place creates the files of the GPUs' drivers.
func place(t testing.TB, gpus []GPU) {
	t.Helper()
	for _, g := range gpus {
		for _, m := range g.Mounts() {
			testutil.WriteFile(t, m.HostPath, m.ContainerPath, 0o600)
		}
	}
}

// inventory returns an inventory file, which JSON is, with the GPUs.
func inventory(t testing.TB, gpus []GPU) string {
	t.Helper()
	type object = map[string]any
	devices := []object{}
	for _, g := range gpus {
		devices = append(devices, object{
			"instanceID": g.InstanceID, "description": g.Description, "locationPath": g.LocationPath, "luid": g.LUID.String(),
			"driver":  object{"version": g.DriverVersion, "storePath": g.DriverStorePath},
			"display": g.SupportsDisplay, "compute": g.SupportsCompute,
			"runtimeFiles": object{"system32": g.System32, "sysWOW64": g.SysWOW64},
		})
	}
	return string(JSON(t, object{"apiVersion": "directx.microsoft.com/v1alpha1", "kind": "Inventory", "devices": devices}))
}
