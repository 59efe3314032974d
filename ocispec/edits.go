// Package ocispec turns devices into [Edits] of a container, and applies such
// edits to an OCI runtime spec.
//
// All of it is pure but for what [Files] is asked about the host, and applying
// anything twice changes nothing. It knows nothing of NRI, for the runtime shim
// starts with every container, and what a program links it pays for at each
// start: the package adjustment carries edits over NRI.
package ocispec

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/discovery"
	"directx-nri/internal/config"
	"directx-nri/internal/winpath"
)

// OS is a container's operating system, as GOOS spells it.
type OS string

// The operating systems that a container can have.
const (
	Windows OS = "windows"
	Linux   OS = "linux"
)

// ParseOS returns the operating system that name spells.
func ParseOS(name string) (OS, error) {
	switch os := OS(name); os {
	case Windows, Linux:
		return os, nil
	}
	return "", fmt.Errorf("container operating system %q is neither %q nor %q", name, Windows, Linux)
}

// Folders that runtime files are mounted into. A container's system drive is
// always C:, whatever the host's is.
const (
	system32 = `C:\Windows\System32`
	sysWOW64 = `C:\Windows\SysWOW64`
)

// Types of windows.devices that hcsshim assigns GPUs by.
// https://github.com/opencontainers/runtime-spec/blob/main/config-windows.md#devices
const (
	// IDTypeLocationPath names one device by its PCIe location path.
	IDTypeLocationPath = "vpci-location-path"
	// IDTypeClass and IDTypeClassGUID name all devices of an interface class.
	// The specification has the first, and every hcsshim takes it; some take the
	// second too.
	// https://github.com/microsoft/hcsshim/blob/v0.15.0/internal/uvm/virtual_device.go
	IDTypeClass     = "class"
	IDTypeClassGUID = "vpci-class-guid"
)

// DisplayClass is the interface class of GPUs: a container that is given it
// gets all of them.
// https://learn.microsoft.com/virtualization/windowscontainers/deploy-containers/gpu-acceleration
const DisplayClass = "5B45201D-F2F2-4F3B-85BB-30FF1F953599"

// ErrNotAssignable tells a device that a container of this operating system
// cannot be given.
var ErrNotAssignable = errors.New("the device cannot be given to a container")

// Files is what must be asked about the host's files.
type Files interface {
	// Resolve returns path with every symbolic link followed, or an error
	// that matches [fs.ErrNotExist] when there is nothing at its end.
	Resolve(path string) (string, error)
	// DeviceNode describes the device node at path.
	DeviceNode(path string) (specs.LinuxDevice, error)
	// Glob returns the paths, relative to folder and sorted, of the files below it
	// that fit pattern, a relative Windows path whose elements may have * and ? in
	// them. It returns at most limit. What is not there is no error.
	Glob(folder, pattern string, limit int) ([]string, error)
}

// Edits is what a container gets.
type Edits struct {
	// Annotations replace the spec's of the same key.
	Annotations map[string]string
	// Env are variables as NAME=value; each replaces the spec's of that name.
	Env            []string
	WindowsDevices []specs.WindowsDevice
	LinuxDevices   []specs.LinuxDevice
	Mounts         []specs.Mount
}

// Note tells of a file that a container does not get although a driver lists
// it.
type Note struct {
	Device string // the device's name
	Source string // the file on the host
	Reason string
	// Minor tells what is usual, such as an optional file that this driver does not
	// have.
	Minor bool
}

func (n Note) String() string { return fmt.Sprintf("device %s: %s: %s", n.Device, n.Source, n.Reason) }

// Options are how containers are given devices. The zero value gives each
// device by itself, with what its driver lists.
type Options struct {
	// ByClass gives a Windows container all GPUs of the node, by their interface
	// class, in place of single ones. The files are those of its own devices.
	ByClass bool
	// RuntimeFiles change which files the containers of a vendor's GPUs get.
	RuntimeFiles []config.RuntimeFiles
}

// ForDevices is [Options.ForDevices] with the zero options.
func ForDevices(os OS, devices []discovery.Device, files Files) (Edits, []Note, error) {
	return Options{}.ForDevices(os, devices, files)
}

// ForDevices returns the edits that give devices to a container of the given
// operating system.
//
// Runtime files that are not on disk are left out, because a missing mount
// source fails the whole container, and so is a file that would hide that of
// an earlier device: the notes tell of both. Mount sources are resolved, because
// HCS cannot follow a symbolic link to a file.
func (o Options) ForDevices(os OS, devices []discovery.Device, files Files) (Edits, []Note, error) {
	b := builder{os: os, files: files, byClass: o.ByClass, taken: map[string]string{}}
	for _, d := range devices {
		var err error
		if os == Windows {
			var notes []Note
			d, notes = withRuntimeFiles(d, o.RuntimeFiles, files)
			b.notes = append(b.notes, notes...)
		}
		if os == Windows {
			err = b.addWindows(d)
		} else {
			err = b.addLinux(d)
		}
		if err != nil {
			return Edits{}, nil, fmt.Errorf("device %s: %w", d.Name(), err)
		}
	}
	return b.edits, b.notes, nil
}

type builder struct {
	os      OS
	files   Files
	byClass bool
	edits   Edits
	notes   []Note
	// taken maps the destinations that are taken to their sources.
	taken map[string]string
}

func (b *builder) addWindows(d discovery.Device) error {
	switch {
	case b.byClass && len(b.edits.WindowsDevices) == 0:
		b.edits.WindowsDevices = []specs.WindowsDevice{{ID: DisplayClass, IDType: IDTypeClass}}
	case b.byClass:
	case d.LocationPath == "":
		return fmt.Errorf("%w: it has no location path", ErrNotAssignable)
	default:
		b.edits.WindowsDevices = append(b.edits.WindowsDevices, specs.WindowsDevice{ID: d.LocationPath, IDType: IDTypeLocationPath})
	}
	for _, list := range []struct {
		folder string
		files  []discovery.RuntimeFile
	}{{system32, d.System32}, {sysWOW64, d.SysWOW64}} {
		for _, f := range list.files {
			// A source checks this too; what mounts files as SYSTEM does not
			// rely on it.
			if !winpath.IsLocal(f.Source) || !winpath.IsLocal(f.Destination) {
				b.note(d, f.Source, "its path leads out of the driver store or out of "+list.folder)
				continue
			}
			if err := b.mount(d, winpath.Join(d.DriverStorePath, f.Source), winpath.Join(list.folder, f.Destination)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *builder) addLinux(d discovery.Device) error {
	if len(d.DeviceNodes) == 0 {
		return fmt.Errorf("%w: it has no device node", ErrNotAssignable)
	}
	for _, n := range d.DeviceNodes {
		node, err := b.files.DeviceNode(n.Path)
		if err != nil {
			return fmt.Errorf("device node %s: %w", n.Path, err)
		}
		node.Path = n.ContainerPath
		key := DestinationKey(b.os, n.ContainerPath)
		switch first, taken := b.taken[key]; {
		case !taken:
			b.taken[key] = n.Path
			b.edits.LinuxDevices = append(b.edits.LinuxDevices, node)
		case first != n.Path:
			// A file can be done without. A device was promised.
			return fmt.Errorf("%w together with the others: its device node %s would be at %s, where %s is", ErrNotAssignable, n.Path, n.ContainerPath, first)
		}
	}
	for _, l := range d.Libraries {
		if err := b.mount(d, l.Source, l.Destination); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) mount(d discovery.Device, source, destination string) error {
	resolved, err := b.files.Resolve(source)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		b.note(d, source, "the driver lists the file and it is not on disk; the container does without")
		return nil
	case err != nil:
		return fmt.Errorf("runtime file %s: %w", source, err)
	}
	if b.take(d, resolved, destination) {
		b.edits.Mounts = append(b.edits.Mounts, ReadOnlyMount(b.os, resolved, destination))
	}
	return nil
}

// take tells whether destination is free for source, and takes it. Devices of
// one driver share their files, so that the same source again is no conflict.
func (b *builder) take(d discovery.Device, source, destination string) bool {
	key := DestinationKey(b.os, destination)
	first, taken := b.taken[key]
	if taken {
		if !samePath(b.os, first, source) {
			b.note(d, source, fmt.Sprintf("%s is taken by %s of an earlier device", destination, first))
		}
		return false
	}
	b.taken[key] = source
	return true
}

func (b *builder) note(d discovery.Device, source, reason string) {
	b.notes = append(b.notes, Note{Device: d.Name(), Source: source, Reason: reason})
}

// ReadOnlyMount returns a mount in the form that the runtimes take: hcsshim
// looks at "ro" alone and takes a type for a kind of disk; runc wants a bind.
func ReadOnlyMount(os OS, source, destination string) specs.Mount {
	if os == Windows {
		return specs.Mount{Source: source, Destination: destination, Options: []string{"ro"}}
	}
	return specs.Mount{
		Source: source, Destination: destination, Type: "bind",
		Options: []string{"rbind", "ro", "rprivate", "nosuid", "nodev"},
	}
}
