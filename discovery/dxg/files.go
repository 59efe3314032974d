//go:build linux

package dxg

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/hostfiles"
	"github.com/directx-nri/directx-nri/internal/errlog"
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
	mounted, cause := d.DriverStorePath, ""
	switch {
	case a.storeErr != nil:
		cause = "its driver store path is unknown: " + errnoText(a.storeErr)
	case mounted == "":
		cause = "its driver store path has no package"
	}
	packages, err := findDirectory(shared.root, mounted)
	if cause != "" || err != nil {
		cause, mounted = cmp.Or(cause, errlog.Text(err)), driversDir
		packages, err = findDirectory(shared.root, mounted)
	}
	if err == nil {
		d.Libraries = []discovery.Library{{Source: mounted, Destination: mounted}}
	}
	d.LibraryPath = []string{wslDir + "/lib"}
	switch {
	case err != nil:
		markUnhealthy(d, "the VM has no user-mode driver: "+err.Error())
	case d.Kind() == discovery.KindNone:
	case cause != "" && d.Kind() == discovery.KindCompute:
		markUnsupported(d, cause+": whether it has a driver for Linux is unknown")
	case cause != "":
		d.Notes = append(d.Notes, cause+"; containers get all of "+driversDir)
	case !hasLibrary(packages):
		markUnsupported(d, d.DriverStorePath+" has no shared library, so it has no driver for Linux")
	case d.VendorID == pci.VendorIntel:
		// Libraries there load others by name.
		d.LibraryPath = append(d.LibraryPath, d.DriverStorePath)
	}
	if shared.err != nil {
		markUnhealthy(d, "the VM has no libraries: "+shared.err.Error())
	}
	for _, file := range slices.Sorted(maps.Keys(shared.unusable)) {
		if mayBelongToVendor(filepath.Base(file), d.VendorID) {
			d.Notes = append(d.Notes, fmt.Sprintf("containers do not get %s: %v", file, shared.unusable[file]))
		}
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

// findDirectory returns the path at which this process finds a directory of the VM.
func findDirectory(root hostfiles.Root, path string) (string, error) {
	local, info, err := root.Lookup(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%s does not exist", path)
	case err == nil && !info.IsDir():
		return "", fmt.Errorf("%s is not a directory", path)
	}
	return local, err
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
	root, err := os.OpenRoot(directory)
	if err != nil {
		return false
	}
	defer func() { _ = root.Close() }()
	for _, pattern := range []string{"*.so", "*.so.[0-9]*", "*/*.so", "*/*.so.[0-9]*"} {
		if found, _ := fs.Glob(root.FS(), pattern); len(found) > 0 {
			return true
		}
	}
	return false
}

// libraries are the files of /usr/lib/wsl/lib, which all GPUs of a VM share.
type libraries struct {
	root  hostfiles.Root
	files []string
	// unusable has the files that cannot be mounted, such as links to nothing, with the reason.
	unusable map[string]error
	// err is why there are no files.
	err error
}

func readLibraries(root hostfiles.Root) libraries {
	l := libraries{root: root, unusable: map[string]error{}}
	local, err := findDirectory(root, wslDir+"/lib")
	if err != nil {
		l.err = err
		return l
	}
	entries, err := os.ReadDir(local)
	l.err = err
	for _, e := range entries {
		file := filepath.Join(wslDir, "lib", e.Name())
		_, info, err := root.Lookup(file)
		switch {
		case err != nil:
			l.unusable[file] = err
		case info.Mode().IsRegular():
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
