//go:build linux

package dxg

import (
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
	"github.com/directx-nri/directx-nri/internal/pci"
)

// driversDir is where WSL shares the host's driver packages.
const driversDir = wslDir + "/drivers"

// libDir has the libraries of all drivers, and NVIDIA's nvidia-smi. In VMs of Hyper-V, that can be in installedSMI.
const (
	libDir       = wslDir + "/lib"
	installedSMI = "/usr/bin/nvidia-smi"
)

// addFiles adds the device node and the user-mode driver to d. If containers could not use the GPU without a missing
// part, d is unhealthy.
//
// The driver store directory is one read-only mount, because drivers load files that they do not
// list. If the driver package is unknown, all packages are mounted. Each file of /usr/lib/wsl/lib is
// a mount of its own, because extra mounts go into the same directory, and nothing can be mounted in
// a read-only one. Files of other vendors are left out.
//
// Programs find the libraries by LD_LIBRARY_PATH ([discovery.Device.LibraryPath]). A file in
// /etc/ld.so.conf.d would need ldconfig: nvidia-container-toolkit runs it in a hook at each container's start,
// and the file system of a container may be read-only.
func addFiles(d *discovery.Device, shared libraries, a adapterProperties) {
	d.DeviceNodes = []discovery.DeviceNode{{Path: DefaultDevice, ContainerPath: DefaultDevice}}
	d.LibraryPath = []string{libDir}
	if d.Kind() == discovery.KindNone {
		return
	}
	problems := slices.DeleteFunc([]string{addPackage(d, shared.root, a), addLibraries(d, shared)}, func(p string) bool { return p == "" })
	if d.Health.OK() {
		d.Health.Reason = strings.Join(problems, "; ")
	}
}

// addPackage adds the driver package. It returns why containers could not use the driver, "" if they can.
func addPackage(d *discovery.Device, root hostfiles.Root, a adapterProperties) (problem string) {
	entries, err := readDirectory(root, driversDir)
	if err == nil && len(entries) == 0 {
		err = errors.New(driversDir + " is empty")
	}
	if err != nil {
		return "the VM has no user-mode driver: " + err.Error()
	}
	dir, name := "", driverPackage(a.storePath)
	switch {
	case a.storeErr != nil:
		err = fmt.Errorf("its driver store path is unknown: %s", errnoText(a.storeErr))
	case name == "":
		err = errors.New("its driver store path has no package")
	default:
		dir = filepath.Join(driversDir, name)
		entries, err = readDirectory(root, dir)
	}
	d.DriverStorePath = dir
	switch {
	case err != nil && d.Kind() == discovery.KindCompute:
		markUnsupported(d)
		return err.Error() + ": whether it has a driver for Linux is unknown"
	case err != nil && dir != "":
		return "the VM cannot use the host's driver: " + err.Error()
	case err != nil:
		d.Libraries = []discovery.Library{{Source: driversDir, Destination: driversDir}}
		d.Notes = append(d.Notes, err.Error()+"; containers get all of "+driversDir)
		return ""
	}
	d.Libraries = []discovery.Library{{Source: dir, Destination: dir}}
	if !hasLibrary(root, dir, entries) {
		markUnsupported(d)
		return dir + " has no shared library, so it has no driver for Linux"
	}
	if d.VendorID == pci.VendorIntel { // Libraries there load others by name.
		d.LibraryPath = append(d.LibraryPath, dir)
	}
	return ""
}

// addLibraries adds the shared files. It returns which of them containers would lack, "" if they have what they need.
func addLibraries(d *discovery.Device, shared libraries) (problem string) {
	if shared.err != nil {
		return "the VM has no libraries: " + shared.err.Error()
	}
	for _, file := range slices.Sorted(maps.Keys(shared.notes)) {
		if mayBelongToVendor(filepath.Base(file), d.VendorID) {
			d.Notes = append(d.Notes, shared.notes[file])
		}
	}
	for _, file := range shared.files {
		if !mayBelongToVendor(filepath.Base(file), d.VendorID) {
			continue
		}
		d.Libraries = append(d.Libraries, discovery.Library{Source: file, Destination: file})
		if file == libDir+"/nvidia-smi" {
			d.Libraries = append(d.Libraries, discovery.Library{Source: file, Destination: installedSMI})
		}
	}
	required := []string{libDir + "/libdxcore.so"}
	if d.VendorID == pci.VendorNVIDIA {
		required = append(required, libDir+"/libcuda.so.1")
	}
	missing := slices.DeleteFunc(required, func(file string) bool { return slices.Contains(shared.files, file) })
	if len(missing) > 0 {
		return "the VM has no " + strings.Join(missing, " and no ")
	}
	if !slices.Contains(shared.files, libDir+"/libd3d12.so") {
		d.Notes = append(d.Notes, "the VM has no "+libDir+"/libd3d12.so, so programs cannot use Direct3D 12")
	}
	return ""
}

// readDirectory reads a directory of the VM.
func readDirectory(root hostfiles.Root, path string) ([]fs.DirEntry, error) {
	local, info, err := root.Lookup(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s does not exist", path)
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, fmt.Errorf("%s is not a directory", path)
	}
	return os.ReadDir(local)
}

// markUnsupported makes d a device without a kind, which is listed but not advertised.
func markUnsupported(d *discovery.Device) { d.SupportsDisplay, d.SupportsCompute = false, false }

// hasLibrary reports whether a driver package with these entries may have a user-mode driver for Linux. AMD's is in a
// subdirectory. WSL also lists NPUs, which often have no such driver.
// https://github.com/microsoft/WSL/issues/40445
func hasLibrary(root hostfiles.Root, dir string, entries []fs.DirEntry) bool {
	return slices.ContainsFunc(entries, isLibrary) || slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		if e.Type()&(fs.ModeDir|fs.ModeSymlink) == 0 {
			return false
		}
		below, _ := readDirectory(root, filepath.Join(dir, e.Name()))
		return slices.ContainsFunc(below, isLibrary)
	})
}

func isLibrary(e fs.DirEntry) bool {
	isVersion, _ := filepath.Match("*.so.[0-9]*", e.Name()) // The pattern is valid.
	return isVersion || strings.HasSuffix(e.Name(), ".so")
}

// libraries are the files of /usr/lib/wsl/lib, which all GPUs of a VM share, and an installed nvidia-smi.
type libraries struct {
	root  hostfiles.Root
	files []string
	// notes are about files that containers do not get, or cannot use in part.
	notes map[string]string
	// err is why there are no files.
	err error
}

func readLibraries(root hostfiles.Root) libraries {
	l := libraries{root: root, notes: map[string]string{}}
	entries, err := readDirectory(root, libDir)
	l.err = err
	for _, e := range entries {
		l.add(filepath.Join(libDir, e.Name()))
	}
	if !slices.Contains(l.files, libDir+"/nvidia-smi") {
		l.add(installedSMI)
	}
	if _, info, err := root.Lookup(DefaultDevice); err == nil && info.Mode().Perm()&0o006 != 0o006 {
		l.notes[DefaultDevice] = modeNote(DefaultDevice, info)
	}
	return l
}

func modeNote(file string, info fs.FileInfo) string {
	return fmt.Sprintf("%s has the mode %04o, so only some users can use it in containers", file, info.Mode().Perm())
}

// add adds a regular file.
func (l *libraries) add(file string) {
	_, info, err := l.root.Lookup(file)
	switch {
	case errors.Is(err, fs.ErrNotExist) && file == installedSMI:
		return
	case err != nil:
		l.notes[file] = fmt.Sprintf("containers do not get %s: %v", file, err)
		return
	case !info.Mode().IsRegular():
		return
	case info.Mode().Perm()&0o004 == 0:
		l.notes[file] = modeNote(file, info)
	}
	l.files = append(l.files, file)
}

// mayBelongToVendor reports whether a file of /usr/lib/wsl/lib may belong to a vendor's driver.
func mayBelongToVendor(name string, vendor pci.Vendor) bool {
	if vendor == 0 || vendor == pci.VendorNVIDIA {
		return true
	}
	return !slices.ContainsFunc([]string{"libcuda", "libnv", "nvidia-"},
		func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}
