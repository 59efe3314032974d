// Package gpuedits builds the edits that give GPUs to a container: devices, driver files and
// environment variables. It reads the node only through [Files].
package gpuedits

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/pci"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/internal/winpath"
	"github.com/directx-nri/directx-nri/ocispec"
)

// Directories that runtime files are mounted into. The system drive of a container is always C:.
const (
	System32Dir = `C:\Windows\System32`
	SysWOW64Dir = `C:\Windows\SysWOW64`
)

// ErrNotAssignable means that a device cannot be assigned to a container of the operating system.
var ErrNotAssignable = errors.New("it cannot be assigned to a container")

// Files reads the node's files.
type Files interface {
	// MountSource returns path with all symbolic links followed, or an error that
	// matches [fs.ErrNotExist] if there is no file.
	MountSource(path string) (final string, err error)
	// DeviceNode describes the device node at path.
	DeviceNode(path string) (specs.LinuxDevice, error)
	// Glob returns the sorted paths, relative to dir, of the files below it that match pattern, a
	// relative Windows path with * and ? in its elements. No match is no error.
	Glob(dir, pattern string) ([]string, error)
}

// Build returns the edits that give devices to a container with the environment env, on a node with the
// policy p.
//
// A container with a missing mount source does not start, so files that do not exist are skipped.
// Files whose destination is already that of another file are skipped, too. Symbolic links in mount
// sources are resolved, because HCS cannot follow a link to a file.
func Build(
	containerOS string, devices []discovery.Device, env []string, files Files, p policy.Resolved,
) (edits ocispec.Edits, skipped []string, err error) {
	b := builder{containerOS: containerOS, files: files, policy: p, sources: map[string]string{}}
	for _, d := range devices {
		if containerOS == "windows" {
			err = b.addWindows(d)
		} else {
			err = b.addLinux(d)
		}
		if err != nil {
			return ocispec.Edits{}, nil, fmt.Errorf("GPU %s: %w", d.Name(), err)
		}
	}
	if p.VisibilityHints {
		b.edits.Env = visibilityHints(containerOS, devices, env)
	}
	if variable := libraryPath(devices, env); containerOS == "linux" && variable != "" {
		b.edits.Env = append(b.edits.Env, variable)
	}
	return b.edits, b.skipped, nil
}

// libraryPath returns the environment variable LD_LIBRARY_PATH of env with those of the devices' directories that it
// does not have, "" if it has all. NVIDIA's come first: another libcuda, such as that of an image's compatibility
// package, fails in a Linux VM, and images have its directory in this variable.
// https://github.com/microsoft/WSL/issues/9099
func libraryPath(devices []discovery.Device, env []string) string {
	const name = "LD_LIBRARY_PATH"
	before, _ := ocispec.LookupEnv("linux", env, name)
	var first, last []string
	for _, d := range devices {
		for _, directory := range d.LibraryPath {
			if slices.Contains(strings.Split(before, ":"), directory) {
				continue
			}
			if d.VendorID == pci.VendorNVIDIA {
				first = append(first, directory)
			} else {
				last = append(last, directory)
			}
		}
	}
	if len(first)+len(last) == 0 {
		return ""
	}
	var parts []string
	for _, part := range slices.Concat(first, []string{before}, last) {
		if part != "" && !slices.Contains(parts, part) {
			parts = append(parts, part)
		}
	}
	return name + "=" + strings.Join(parts, ":")
}

type builder struct {
	containerOS string
	files       Files
	policy      policy.Resolved
	edits       ocispec.Edits
	// skipped are the files that are not among edits.
	skipped []string
	// sources has the source of each mount and each device node, by the key of its destination.
	sources map[string]string
}

func (b *builder) addWindows(d discovery.Device) error {
	switch {
	case b.policy.Assignment == policy.AssignByClass: // It includes all devices.
		b.edits.WindowsDevices = []specs.WindowsDevice{{ID: ocispec.DisplayClass, IDType: ocispec.IDTypeClass}}
	case d.LocationPath == "":
		return fmt.Errorf("%w: no location path", ErrNotAssignable)
	default:
		b.edits.WindowsDevices = append(b.edits.WindowsDevices, specs.WindowsDevice{ID: d.LocationPath, IDType: ocispec.IDTypeLocationPath})
	}
	configured := b.policy.RuntimeFiles[d.VendorID]
	if b.policy.DriverFiles == policy.FilesNone {
		d.System32, d.SysWOW64 = nil, nil
	} else if configured.Defaults == nil || *configured.Defaults {
		d = b.withRuntimeFiles(d, policy.DefaultRuntimeFiles()[d.VendorID])
	}
	d = b.withRuntimeFiles(d, configured)
	var mounts []specs.Mount
	for _, list := range []struct {
		dir   string
		files []discovery.RuntimeFile
	}{{System32Dir, d.System32}, {SysWOW64Dir, d.SysWOW64}} {
		for _, f := range list.files {
			// Discovery and config check this, too. It is checked again because SYSTEM mounts the files.
			if !winpath.IsLocal(f.Source) || !winpath.IsLocal(f.Destination) {
				b.skip(d, f.Source, "its path leads out of the driver store or out of "+list.dir)
				continue
			}
			source, destination := winpath.Join(d.DriverStorePath, f.Source), winpath.Join(list.dir, f.Destination)
			mounts = append(mounts, ocispec.ReadOnlyMount(b.containerOS, source, destination))
		}
	}
	return b.addMounts(d, mounts)
}

func (b *builder) addLinux(d discovery.Device) error {
	if len(d.DeviceNodes) == 0 {
		return fmt.Errorf("%w: no device node", ErrNotAssignable)
	}
	for _, n := range d.DeviceNodes {
		node, err := b.files.DeviceNode(n.Path)
		if err != nil {
			return fmt.Errorf("device node %s: %w", n.Path, err)
		}
		node.Path = n.ContainerPath
		key := ocispec.DestinationKey(b.containerOS, n.ContainerPath)
		first, taken := b.sources[key]
		switch {
		case !taken:
			b.sources[key] = n.Path
			b.edits.LinuxDevices = append(b.edits.LinuxDevices, ocispec.LinuxDevice{LinuxDevice: node, HostPath: n.Path})
		case first != n.Path:
			return fmt.Errorf("%w together with the others: device nodes %s and %s have the same path %s in the container", ErrNotAssignable, first, n.Path, n.ContainerPath)
		}
	}
	var mounts []specs.Mount
	for _, l := range d.Libraries {
		mounts = append(mounts, ocispec.ReadOnlyMount(b.containerOS, l.Source, l.Destination))
	}
	return b.addMounts(d, mounts)
}

// addMounts adds mounts of the driver's files. Devices of one driver share files, so the same mount again is no
// conflict.
func (b *builder) addMounts(d discovery.Device, mounts []specs.Mount) error {
	for _, m := range mounts {
		source, err := b.files.MountSource(m.Source)
		if errors.Is(err, fs.ErrNotExist) {
			b.skip(d, m.Source, "the driver lists this file, but it does not exist")
			continue
		}
		if err != nil {
			return fmt.Errorf("driver file %s: %w", m.Source, err)
		}
		m.Source = source
		key := ocispec.DestinationKey(b.containerOS, m.Destination)
		first, isTaken := b.sources[key]
		if !isTaken {
			b.sources[key] = m.Source
			b.edits.Mounts = append(b.edits.Mounts, m)
		} else if ocispec.DestinationKey(b.containerOS, first) != ocispec.DestinationKey(b.containerOS, m.Source) {
			b.skip(d, m.Source, fmt.Sprintf("%s is already %s", m.Destination, first))
		}
	}
	return nil
}

// skip records that a file is skipped.
func (b *builder) skip(d discovery.Device, source, reason string) {
	b.skipped = append(b.skipped, fmt.Sprintf("GPU %s: %s: %s", d.Name(), source, reason))
}

// withRuntimeFiles returns d with the changes to its runtime files. A file that d already has takes
// precedence over an added one of the same name.
func (b *builder) withRuntimeFiles(d discovery.Device, changes policy.RuntimeFiles) discovery.Device {
	isRemoved := func(f discovery.RuntimeFile) bool {
		return slices.ContainsFunc(changes.Remove, func(pattern string) bool { return winpath.MatchPath(pattern, f.Source) })
	}
	d.System32 = slices.DeleteFunc(slices.Clone(d.System32), isRemoved)
	d.SysWOW64 = slices.DeleteFunc(slices.Clone(d.SysWOW64), isRemoved)
	for _, entry := range changes.Add {
		list := &d.System32
		if entry.Directory == policy.SysWOW64 {
			list = &d.SysWOW64
		}
		b.addFiles(d, list, entry)
	}
	return d
}

// addFiles adds the existing files that match an entry of a rule to a list of d. Not every driver has them.
func (b *builder) addFiles(d discovery.Device, list *[]discovery.RuntimeFile, entry policy.AddedFile) {
	skip := func(source, reason string) {
		b.skip(d, winpath.Join(d.DriverStorePath, source), "added by runtimeFiles, but "+reason)
	}
	if d.DriverStorePath == "" || !winpath.IsLocalGlob(entry.Source) {
		skip(entry.Source, "it is not below a driver store path")
		return
	}
	sources, err := b.files.Glob(d.DriverStorePath, entry.Source)
	if err != nil {
		skip(entry.Source, "the driver store cannot be read: "+err.Error())
		return
	}
	for _, source := range sources {
		file := discovery.RuntimeFile{Source: source, Destination: entry.Destination}
		if file.Destination == "" || winpath.HasWildcard(entry.Source) {
			file.Destination = winpath.Base(source)
		}
		i := slices.IndexFunc(*list, func(f discovery.RuntimeFile) bool { return winpath.Equal(f.Destination, file.Destination) })
		if i < 0 {
			*list = append(*list, file)
		} else if !winpath.Equal((*list)[i].Source, source) {
			skip(source, fmt.Sprintf("%s is already %s", file.Destination, (*list)[i].Source))
		}
	}
}
