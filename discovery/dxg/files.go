//go:build linux

package dxg

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/discovery"
)

// maxLibraries is the largest number of files of /usr/lib/wsl/lib that are mounted.
const maxLibraries = 256

// addFiles adds the device node and the user-mode driver to d.
//
// The driver store directory is one read-only mount, because drivers load files by
// names that they do not list. The files of /usr/lib/wsl/lib are single mounts at
// their own paths, without those of other vendors: extra mounts go into the same
// directory, and nothing can be mounted in a read-only one. Without a known driver
// package, all packages are mounted.
//
// The libraries are found by LD_LIBRARY_PATH ([discovery.Device.LibraryPath]), which
// the container's own value precedes. A file in /etc/ld.so.conf.d has no effect until ldconfig
// runs: nvidia-container-toolkit does that by a hook, which is a program of the node in each
// container's start, and the file system of a container may be read-only.
func addFiles(d *discovery.Device, v vm, a adapterProperties) {
	d.DeviceNodes = []discovery.DeviceNode{{Path: DefaultDevice, ContainerPath: DefaultDevice}}
	const drivers = wsl + "/drivers"
	if name := driverPackage(a.storePath); name != "" {
		d.DriverStorePath = filepath.Join(drivers, name)
	}
	for _, directory := range []string{d.DriverStorePath, drivers} {
		if mode(filepath.Join(v.root, directory)).IsDir() {
			d.Libraries = []discovery.Library{{Source: directory, Destination: directory}}
			break
		}
	}
	d.LibraryPath = []string{wsl + "/lib"}
	cause := ""
	switch {
	case len(d.Libraries) == 0:
		fail(d, drivers+" does not exist: the VM has no user-mode driver")
	case d.Kind() == discovery.KindNone:
	case a.storeErr != nil:
		cause = "its driver store path is unknown: " + errnoText(a.storeErr)
	case d.DriverStorePath == "":
		cause = "its driver store path has no package"
	case d.Libraries[0].Source == drivers:
		cause = d.DriverStorePath + " does not exist"
	case !hasLibrary(filepath.Join(v.root, d.DriverStorePath)):
		withdraw(d, d.DriverStorePath+" has no shared library, so it has no driver for Linux")
	case d.VendorID == discovery.VendorIntel:
		// Libraries there load others by name.
		d.LibraryPath = append(d.LibraryPath, d.DriverStorePath)
	}
	switch {
	case cause == "":
	case d.Kind() == discovery.KindCompute:
		withdraw(d, cause+": whether it has a driver for Linux is unknown")
	default:
		d.Notes = append(d.Notes, cause+"; containers get all of "+drivers)
	}
	if v.err != nil {
		fail(d, "the VM has no libraries: "+v.err.Error())
	}
	for _, file := range v.files {
		name := filepath.Base(file)
		if !forVendor(name, d.VendorID) {
			continue
		}
		d.Libraries = append(d.Libraries, discovery.Library{Source: file, Destination: file})
		if name == "nvidia-smi" {
			d.Libraries = append(d.Libraries, discovery.Library{Source: file, Destination: "/usr/bin/nvidia-smi"})
		}
	}
}

// withdraw makes d a device that is listed and not offered.
func withdraw(d *discovery.Device, reason string) {
	fail(d, reason)
	d.SupportsDisplay, d.SupportsCompute = false, false
}

// hasLibrary reports whether a driver package may have a user-mode driver for Linux. AMD's is in a
// subdirectory. WSL lists NPUs, too, which cannot be used without.
// https://github.com/microsoft/WSL/issues/40445
func hasLibrary(directory string) bool {
	for _, pattern := range []string{"*.so", "*.so.[0-9]*", "*/*.so", "*/*.so.[0-9]*"} {
		if found, _ := fs.Glob(os.DirFS(directory), pattern); len(found) > 0 {
			return true
		}
	}
	return false
}

// vm is what all GPUs of a VM share.
type vm struct {
	// root is the directory of the VM's root.
	root string
	// files are those of /usr/lib/wsl/lib.
	files []string
	// err is why there are no files.
	err error
}

func openVM(root string) vm {
	v := vm{root: root}
	entries, err := os.ReadDir(filepath.Join(root, wsl, "lib"))
	v.err = err
	for _, e := range entries[:min(len(entries), maxLibraries)] {
		if file := filepath.Join(wsl, "lib", e.Name()); mode(filepath.Join(root, file)).IsRegular() {
			v.files = append(v.files, file)
		}
	}
	return v
}

// fail makes a healthy device unhealthy.
func fail(d *discovery.Device, reason string) {
	if d.Health.OK() {
		d.Health.Reason = reason
	}
}

// forVendor reports whether a file of /usr/lib/wsl/lib may belong to a vendor's driver.
func forVendor(name string, vendor discovery.VendorID) bool {
	if vendor == 0 || vendor == discovery.VendorNVIDIA {
		return true
	}
	return !slices.ContainsFunc([]string{"libcuda", "libnv", "nvidia-"}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}

// mode returns the type of a file, an irregular one if it cannot be read.
func mode(path string) fs.FileMode {
	info, err := os.Stat(path)
	if err != nil {
		return fs.ModeIrregular
	}
	return info.Mode()
}
