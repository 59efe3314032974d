//go:build e2e && windows

package bed

import (
	"fmt"
	"testing"

	"directx-nri/internal/allocation"
)

// Inventory has a node's GPUs.
type Inventory struct{ GPUs []GPU }

// GPU is a GPU of a node.
type GPU struct {
	InstanceID, Location, LUID string
	// UUID is that of NVIDIA's driver, empty if it is unknown.
	UUID string
	// Store is its driver store path.
	Store string
	Files []File
}

// File is a runtime file.
type File struct {
	// Source is its path below the driver store path.
	Source string
	// Name is its name in the container.
	Name string
	// WOW64 places it in SysWOW64, for 32-bit programs.
	WOW64 bool
	// Missing is a file that the driver lists and that does not exist. Unlisted is one
	// that exists and is not listed.
	Missing, Unlisted bool
}

// DriverStore is the directory of Windows drivers.
const DriverStore = `C:\Windows\System32\DriverStore\FileRepository`

// NewInventory returns two GPUs with different drivers, whose directories have names that
// begin with prefix.
func (m *Machine) NewInventory(prefix string) *Inventory {
	gpu := func(i int, files ...File) GPU {
		return GPU{
			InstanceID: fmt.Sprintf(`PCI\VEN_10DE&DEV_1EB8&SUBSYS_12A210DE&REV_A1\%s&%d`, prefix, i),
			Location:   fmt.Sprintf("PCIROOT(0)#PCI(1%c00)", 'B'+i),
			LUID:       fmt.Sprintf("0x00000000_0x0000C%03X", i+1),
			Store:      fmt.Sprintf(`%s\%s%d.inf_amd64_0f2a6b1c9d8e7354`, m.Store, prefix, i),
			Files:      files,
		}
	}
	return &Inventory{GPUs: []GPU{
		gpu(0,
			File{Source: "nvcuda_loader64.dll", Name: "nvcuda.dll"},
			File{Source: "nvapi64.dll", Name: "nvapi64.dll"},
			File{Source: `sub\nvml_loader.dll`, Name: "nvml.dll"},
			File{Source: "gone64.dll", Name: "gone.dll", Missing: true},
			File{Source: "nvcuda_loader32.dll", Name: "nvcuda.dll", WOW64: true},
			File{Source: "gone32.dll", Name: "gone.dll", WOW64: true, Missing: true},
		),
		gpu(1,
			File{Source: "amdhip64.dll", Name: "amdhip64.dll"},
			File{Source: "amdhip32.dll", Name: "amdhip32.dll", WOW64: true},
		),
	}}
}

// Replica returns the i-th replica of a GPU.
func (g GPU) Replica(i int) allocation.Replica {
	return allocation.Replica{ID: fmt.Sprintf("%s::%d", g.InstanceID, i), InstanceID: g.InstanceID}
}

// Mounts returns the files of a container with the GPU: those that are listed and exist.
func (g GPU) Mounts() []Mapped {
	var mounts []Mapped
	for _, f := range g.Files {
		if f.Missing || f.Unlisted {
			continue
		}
		dir := "System32"
		if f.WOW64 {
			dir = "SysWOW64"
		}
		mounts = append(mounts, Mapped{
			HostPath:      g.Store + `\` + f.Source,
			ContainerPath: `C:\Windows\` + dir + `\` + f.Name,
			ReadOnly:      true,
		})
	}
	return mounts
}

// place creates the drivers' files.
func (v *Inventory) place(t testing.TB) {
	t.Helper()
	for _, g := range v.GPUs {
		for _, f := range g.Files {
			if !f.Missing {
				writeFile(t, g.Store+`\`+f.Source, f.Source)
			}
		}
	}
}

// yaml returns the inventory file, which JSON is.
func (v *Inventory) yaml(t testing.TB) string {
	t.Helper()
	devices := []map[string]any{}
	for _, g := range v.GPUs {
		files := map[string][]map[string]string{}
		for _, f := range g.Files {
			list := "system32"
			if f.WOW64 {
				list = "sysWOW64"
			}
			if !f.Unlisted {
				files[list] = append(files[list], map[string]string{"source": f.Source, "destination": f.Name})
			}
		}
		device := map[string]any{
			"instanceID": g.InstanceID, "description": "a test's GPU", "locationPath": g.Location, "luid": g.LUID,
			"driver":  map[string]string{"version": "31.0.15.5222", "storePath": g.Store},
			"display": true, "compute": true, "runtimeFiles": files,
		}
		if g.UUID != "" {
			device["uuid"] = g.UUID
		}
		devices = append(devices, device)
	}
	return string(marshal(t, map[string]any{"apiVersion": "directx.microsoft.com/v1alpha1", "kind": "Inventory", "devices": devices}))
}
