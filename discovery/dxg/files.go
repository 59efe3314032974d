//go:build linux

package dxg

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/pci"
)

// driversDir is where WSL shares the host's driver packages.
const driversDir = wslDir + "/drivers"

// addFiles adds the device node and the user-mode driver to d.
//
// The driver store directory is one read-only mount, because drivers load files that they do not
// list. If the driver package is unknown, all packages are mounted. Each file of /usr/lib/wsl/lib is
// a mount of its own, because extra mounts go into the same directory, and nothing can be mounted in
// a read-only one. Files of other vendors are left out.
//
// Programs find the libraries by LD_LIBRARY_PATH ([discovery.Device.LibraryPath]), in which the
// container's own value comes first. A file in /etc/ld.so.conf.d would need ldconfig:
// nvidia-container-toolkit runs it in a hook at each container's start, and the file system of a
// container may be read-only.
func addFiles(d *discovery.Device, shared libraries, a adapterProperties) {
	d.DeviceNodes = []discovery.DeviceNode{{Path: DefaultDevice, ContainerPath: DefaultDevice}}
	if name := driverPackage(a.storePath); name != "" {
		d.DriverStorePath = filepath.Join(driversDir, name)
	}
	mounted, cause := d.DriverStorePath, missingPackage(*d, shared.root, a.storeErr)
	if cause != "" {
		mounted = driversDir
	}
	if fileMode(filepath.Join(shared.root, mounted)).IsDir() {
		d.Libraries = []discovery.Library{{Source: mounted, Destination: mounted}}
	}
	d.LibraryPath = []string{wslDir + "/lib"}
	switch {
	case len(d.Libraries) == 0:
		markUnhealthy(d, driversDir+" does not exist: the VM has no user-mode driver")
	case d.Kind() == discovery.KindNone:
	case cause != "" && d.Kind() == discovery.KindCompute:
		markUnsupported(d, cause+": whether it has a driver for Linux is unknown")
	case cause != "":
		d.Notes = append(d.Notes, cause+"; containers get all of "+driversDir)
	case !hasLibrary(filepath.Join(shared.root, d.DriverStorePath)):
		markUnsupported(d, d.DriverStorePath+" has no shared library, so it has no driver for Linux")
	case d.VendorID == pci.VendorIntel:
		// Libraries there load others by name.
		d.LibraryPath = append(d.LibraryPath, d.DriverStorePath)
	}
	if shared.err != nil {
		markUnhealthy(d, "the VM has no libraries: "+shared.err.Error())
	}
	for _, file := range shared.files {
		name := filepath.Base(file)
		if !mayBelongToVendor(name, d.VendorID) {
			continue
		}
		d.Libraries = append(d.Libraries, discovery.Library{Source: file, Destination: file})
		if name == "nvidia-smi" {
			d.Libraries = append(d.Libraries, discovery.Library{Source: file, Destination: "/usr/bin/nvidia-smi"})
		}
	}
}

// missingPackage returns why the driver package of d is unknown or missing, "" if it exists.
func missingPackage(d discovery.Device, root string, storeErr error) string {
	switch {
	case storeErr != nil:
		return "its driver store path is unknown: " + errnoText(storeErr)
	case d.DriverStorePath == "":
		return "its driver store path has no package"
	case !fileMode(filepath.Join(root, d.DriverStorePath)).IsDir():
		return d.DriverStorePath + " does not exist"
	}
	return ""
}

// markUnsupported makes d an unhealthy device without a kind, which is listed but not advertised.
func markUnsupported(d *discovery.Device, reason string) {
	markUnhealthy(d, reason)
	d.SupportsDisplay, d.SupportsCompute = false, false
}

// hasLibrary reports whether a driver package may have a user-mode driver for Linux. AMD's is in a
// subdirectory. WSL also lists NPUs, which often have no such driver.
// https://github.com/microsoft/WSL/issues/40445
func hasLibrary(directory string) bool {
	for _, pattern := range []string{"*.so", "*.so.[0-9]*", "*/*.so", "*/*.so.[0-9]*"} {
		if found, _ := fs.Glob(os.DirFS(directory), pattern); len(found) > 0 {
			return true
		}
	}
	return false
}

// libraries are the files of /usr/lib/wsl/lib, which all GPUs of a VM share.
type libraries struct {
	// root is where the VM's root directory is mounted.
	root  string
	files []string
	// err is why there are no files.
	err error
}

func readLibraries(root string) libraries {
	l := libraries{root: root}
	entries, err := os.ReadDir(filepath.Join(root, wslDir, "lib"))
	l.err = err
	for _, e := range entries {
		if file := filepath.Join(wslDir, "lib", e.Name()); fileMode(filepath.Join(root, file)).IsRegular() {
			l.files = append(l.files, file)
		}
	}
	return l
}

// markUnhealthy makes a healthy device unhealthy.
func markUnhealthy(d *discovery.Device, reason string) {
	if d.Health.OK() {
		d.Health.Reason = reason
	}
}

// mayBelongToVendor reports whether a file of /usr/lib/wsl/lib may belong to a vendor's driver.
func mayBelongToVendor(name string, vendor pci.Vendor) bool {
	if vendor == 0 || vendor == pci.VendorNVIDIA {
		return true
	}
	return !slices.ContainsFunc([]string{"libcuda", "libnv", "nvidia-"},
		func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// fileMode returns the mode of a file, or [fs.ModeIrregular] if it cannot be read.
func fileMode(path string) fs.FileMode {
	info, err := os.Stat(path)
	if err != nil {
		return fs.ModeIrregular
	}
	return info.Mode()
}
