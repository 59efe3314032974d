//go:build e2e && linux

package bed

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/directx-nri/directx-nri/internal/testutil"
)

// gpuMajor is the major number of the simulated GPUs' device nodes. It is kept
// free for local use and has no driver: opening such a node fails with ENXIO, or with
// EPERM if the control group does not allow it, which is checked first.
// https://www.kernel.org/doc/html/latest/admin-guide/devices.html
const gpuMajor = 61

// GPU is one simulated GPU.
type GPU struct {
	// Index identifies the GPU: it is the minor number of the device node.
	Index int
	// Compute makes it a compute-only device.
	Compute bool
	// Unhealthy is why it cannot be used, empty when it can.
	Unhealthy string
	// Libraries is how many further library files it has.
	Libraries int
	// Description, Memory in bytes and Driver, its version, are matched by rules.
	Description, Driver string
	Memory              uint64
}

// Inventory is what an inventory file describes.
type Inventory struct{ GPUs []GPU }

// NewInventory describes GPUs for display and, after them, compute-only ones.
func NewInventory(display, compute int) *Inventory {
	inventory := &Inventory{}
	for i := range display + compute {
		inventory.GPUs = append(inventory.GPUs, GPU{Index: i, Compute: i >= display})
	}
	return inventory
}

// Without returns the inventory without a GPU.
func (v *Inventory) Without(index int) *Inventory {
	return &Inventory{slices.DeleteFunc(slices.Clone(v.GPUs), func(g GPU) bool { return g.Index == index })}
}

// Offered returns how many devices of each resource a node with this inventory
// offers.
func (v *Inventory) Offered(replicas int) map[string]int {
	counts := map[string]int{Display: 0, Compute: 0}
	for _, gpu := range v.GPUs {
		if gpu.Unhealthy == "" {
			counts[gpu.Resource()] += replicas
		}
	}
	return counts
}

// Resource is the resource that the GPU is offered as.
func (g GPU) Resource() string {
	if g.Compute {
		return Compute
	}
	return Display
}

// InstanceID is the GPU's identity.
func (g GPU) InstanceID() string {
	return fmt.Sprintf(`VMBUS\{5B45201D-F2F2-4F3B-85BB-%012X}\0`, g.Index)
}

// LocationPath is the GPU's location path, which messages name it by.
func (g GPU) LocationPath() string { return fmt.Sprintf("PCIROOT(0)#PCI(%02X00)", 0x1b+g.Index) }

// LUID is the GPU's locally unique identifier.
func (g GPU) LUID() string { return fmt.Sprintf("0x00000000_0x%08X", 0xc200+g.Index) }

// ContainerPath is where its device node appears in a container.
func (g GPU) ContainerPath() string { return fmt.Sprintf("/dev/dxg%d", g.Index) }

// Mount is one mount of a GPU, a file or a directory, on the host and in the
// container.
type Mount struct{ Source, Destination string }

// Mounts returns the GPU's mounts on a node in dir. Two of them are the same
// for all GPUs; one is a directory.
func (g GPU) Mounts(dir string) []Mount {
	gpus := filepath.Join(dir, "gpus")
	own := fmt.Sprintf("gpu%d", g.Index)
	all := []Mount{
		{filepath.Join(gpus, "lib", "libd3d12.so"), "/usr/lib/wsl/lib/libd3d12.so"},
		{filepath.Join(gpus, "lib", "libdxcore.so"), "/usr/lib/wsl/lib/libdxcore.so"},
		{filepath.Join(gpus, own, "libumd.so"), "/usr/lib/wsl/drivers/" + own + "/libumd.so"},
		{filepath.Join(gpus, own+".inf"), "/usr/lib/wsl/drivers/" + own + ".inf"},
	}
	for i := range g.Libraries {
		file := fmt.Sprintf("libextra%02d.so", i)
		all = append(all, Mount{filepath.Join(gpus, own, file), "/usr/lib/wsl/drivers/" + own + "/" + file})
	}
	return all
}

// files returns the paths of the mount's files below it, "" if it is a file itself.
func (m Mount) files() []string {
	if strings.HasSuffix(m.Source, ".inf") {
		return []string{"/a.dat", "/sub/b.dat"}
	}
	return []string{""}
}

// content is what the file with that path on the host holds.
func content(path string) string { return "data of " + path + "\n" }

// files returns the files that a container with the GPU must have, by their
// path in it, with their content.
func (g GPU) files(dir string) map[string]string {
	files := make(map[string]string)
	for _, m := range g.Mounts(dir) {
		for _, file := range m.files() {
			files[m.Destination+file] = content(m.Source + file)
		}
	}
	return files
}

// makeGPU makes the device node and the files of a GPU.
func (n *Node) makeGPU(t testing.TB, g GPU) {
	t.Helper()
	for _, m := range g.Mounts(n.Dir) {
		for _, file := range m.files() {
			WriteFile(t, m.Source+file, content(m.Source+file), 0o644)
		}
	}
	err := unix.Mknod(n.DeviceNode(g), unix.S_IFCHR|0o666, int(unix.Mkdev(gpuMajor, uint32(g.Index))))
	if !errors.Is(err, fs.ErrExist) {
		testutil.NoError(t, err)
	}
}

// DeviceNode returns the path of a GPU's device node on the host.
func (n *Node) DeviceNode(g GPU) string {
	return filepath.Join(n.Dir, "gpus", fmt.Sprintf("node%d", g.Index))
}

// WriteInventory makes what the inventory describes and puts its file in force.
func (n *Node) WriteInventory(t testing.TB, inventory *Inventory) {
	t.Helper()
	type object = map[string]any
	devices := []object{}
	for _, g := range inventory.GPUs {
		n.makeGPU(t, g)
		node := object{"path": n.DeviceNode(g)}
		if !n.SameDevicePaths {
			node["containerPath"] = g.ContainerPath()
		}
		var libraries []object
		for _, m := range g.Mounts(n.Dir) {
			libraries = append(libraries, object{"source": m.Source, "destination": m.Destination})
		}
		device := object{
			"instanceID": g.InstanceID(), "description": cmp.Or(g.Description, fmt.Sprintf("Simulated GPU %d", g.Index)), "vendorID": "0x10DE",
			"locationPath": g.LocationPath(), "luid": g.LUID(), "driver": object{"version": cmp.Or(g.Driver, "31.0.15.5222")},
			"dedicatedMemory": cmp.Or(g.Memory, 15<<30), "display": !g.Compute, "compute": true,
			"linux": object{"deviceNodes": []object{node}, "libraries": libraries},
		}
		if g.Unhealthy != "" {
			device["health"] = object{"reason": g.Unhealthy}
		}
		devices = append(devices, device)
	}
	// JSON is YAML too.
	text, err := json.MarshalIndent(object{"apiVersion": "directx.microsoft.com/v1alpha1", "kind": "Inventory", "devices": devices}, "", " ")
	testutil.NoError(t, err)
	WriteFile(t, n.inventory, string(text), 0o644)
	n.Inventory = inventory
}
