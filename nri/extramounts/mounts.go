package extramounts

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go"

	"directx-nri/discovery"
	"directx-nri/internal/config"
	"directx-nri/internal/strictyaml"
	"directx-nri/ocispec"
)

// Why a file is refused, beside what is wrong with its path.
var (
	ErrOff               = errors.New("extra mounts are off on this node; remove the request, or have the administrator set extraMounts.sources")
	ErrTooMany           = errors.New("these are more files than a container may ask for; ask for fewer, or have the administrator raise extraMounts.max")
	ErrSource            = errors.New("a container of this node may not have files from there; name a file relative to the driver store, or have the administrator set extraMounts.sources and list the folder in extraMounts.hostFolders")
	ErrNoStore           = errors.New("none of the container's GPUs has a driver store folder on this node, which a relative path is in; name the file by its absolute path in a folder of extraMounts.hostFolders")
	ErrMissing           = errors.New("there is no such file; correct the path")
	ErrNotFile           = errors.New("it is not a regular file, and only single files are mounted; name a file")
	ErrLeadsOut          = errors.New("a link or a junction on the way leads out of the folder that the file must be in; name the file itself")
	ErrDestination       = errors.New("files may not be put there; write a name, or a path below one of the folders that the administrator lists in extraMounts.destinations")
	ErrDestinationFolder = errors.New("folder is for a destination that is a name on Windows; remove it")
	ErrSystemFile        = errors.New("a file of Windows itself is there, which cannot be replaced; write another name")
	ErrTaken             = errors.New("another file is mounted there; write another name")
)

// Names of the folders for files without a path of their own.
const (
	folder64 = "System32"
	folder32 = "SysWOW64"
)

const (
	windowsFolder = `C:\Windows`
	system32      = windowsFolder + `\` + folder64
	sysWOW64      = windowsFolder + `\` + folder32
	// linuxFolder is where Linux' programs look for Direct3D's libraries.
	// https://learn.microsoft.com/windows/ai/directml/gpu-accelerated-training
	linuxFolder = "/usr/lib/wsl/lib"
)

// Files is what must be asked about the node's files.
type Files interface {
	// Final returns where path leads to in the end: every link and junction is
	// followed, and names are long ones. regular tells a regular file. The error
	// matches [fs.ErrNotExist] when there is nothing.
	Final(path string) (final string, regular bool, err error)
	// SameContent tells whether two files hold the same bytes.
	SameContent(a, b string) (bool, error)
}

// Policy is what a node's containers may have.
type Policy struct {
	config.ExtraMounts
	OS    ocispec.OS
	Files Files
}

// Mounts returns the mounts of what is asked for by a container that gets devices
// and, with them, the mounts given. Everything is granted, or nothing and the error
// says which file is refused, why, and what to do.
//
// A file that the container gets already, at the same place, is no further mount.
func (p Policy) Mounts(requests []Request, devices []discovery.Device, given []specs.Mount) ([]specs.Mount, error) {
	switch {
	case len(requests) == 0:
		return nil, nil
	case p.Sources != config.MountDriverStore && p.Sources != config.MountHostFolders:
		return nil, ErrOff
	case len(requests) > p.Max:
		return nil, fmt.Errorf("%d files are asked for, and %d is the most: %w", len(requests), p.Max, ErrTooMany)
	}
	taken := map[string]string{}
	for _, m := range given {
		taken[ocispec.DestinationKey(p.OS, m.Destination)] = m.Source
	}
	var mounts []specs.Mount
	for _, request := range requests {
		source, destination, err := p.judge(request, devices)
		if err != nil {
			return nil, fmt.Errorf("source %s: %w", strictyaml.Quote(request.Source), err)
		}
		key := ocispec.DestinationKey(p.OS, destination)
		switch other, isTaken := taken[key]; {
		case !isTaken:
			if err := p.checkSystem(source, destination); err != nil {
				return nil, fmt.Errorf("destination %s: %w", strictyaml.Quote(destination), err)
			}
			taken[key] = source
			mounts = append(mounts, ocispec.ReadOnlyMount(p.OS, source, destination))
		case ocispec.DestinationKey(p.OS, other) != ocispec.DestinationKey(p.OS, source):
			return nil, fmt.Errorf("destination %s: %w", strictyaml.Quote(destination), ErrTaken)
		}
	}
	return mounts, nil
}

// judge returns the file of the node that request names, as it is mounted, and
// where.
func (p Policy) judge(request Request, devices []discovery.Device) (source, destination string, err error) {
	from, err := plain(p.OS, request.Source)
	if err != nil {
		return "", "", err
	}
	// First what needs no look at the node's files: a pod learns nothing of those
	// that it may not have.
	if destination, err = p.destination(request, from); err != nil {
		return "", "", err
	}
	if from.absolute {
		source, err = p.hostFile(from.path)
	} else {
		source, err = p.driverFile(from.path, devices)
	}
	return source, destination, err
}

// destination returns where request's file is put in the container.
func (p Policy) destination(request Request, from place) (string, error) {
	text := request.Destination
	if text == "" {
		text = base(p.OS, from.path)
	}
	to, err := plain(p.OS, text)
	if err != nil {
		return "", fmt.Errorf("destination: %w", err)
	}
	path := to.path
	switch {
	case request.Folder != "" && (to.absolute || p.OS != ocispec.Windows):
		return "", ErrDestinationFolder
	case !to.absolute && to.elements > 1:
		return "", fmt.Errorf("destination %s: %w", strictyaml.Quote(text), ErrDestination)
	case !to.absolute:
		path = join(p.OS, p.folder(request.Folder), to.path)
	}
	if !slices.ContainsFunc(p.allowed(), func(folder string) bool { return below(p.OS, folder, path) }) {
		return "", fmt.Errorf("destination %s: %w", strictyaml.Quote(path), ErrDestination)
	}
	return path, nil
}

// folder returns the folder for files without a path of their own.
func (p Policy) folder(name string) string {
	switch {
	case p.OS == ocispec.Linux:
		return linuxFolder
	case name == folder32:
		return sysWOW64
	}
	return system32
}

// allowed are the folders that files may be put into.
func (p Policy) allowed() []string {
	switch {
	case len(p.Destinations) > 0:
		return p.Destinations
	case p.OS == ocispec.Linux:
		return []string{linuxFolder}
	}
	return []string{system32, sysWOW64}
}

// hostFile returns what path, which is absolute and plain, leads to.
func (p Policy) hostFile(path string) (string, error) {
	if p.Sources != config.MountHostFolders || !slices.ContainsFunc(p.HostFolders, func(f string) bool { return below(p.OS, f, path) }) {
		return "", ErrSource
	}
	return p.regular(path, p.HostFolders)
}

// driverFile returns what path, which is relative and plain, leads to in the first
// driver store folder of devices that has it.
func (p Policy) driverFile(path string, devices []discovery.Device) (string, error) {
	missing := ErrNoStore
	if p.OS == ocispec.Linux {
		// A Windows path means nothing to a container of Linux.
		return "", missing
	}
	for _, d := range devices {
		if d.DriverStorePath == "" {
			continue
		}
		source, err := p.regular(join(p.OS, d.DriverStorePath, path), []string{d.DriverStorePath})
		if !errors.Is(err, ErrMissing) {
			return source, err
		}
		missing = ErrMissing
	}
	return "", missing
}

// regular returns what path leads to when that is a regular file below one of
// folders, they too as what they lead to.
func (p Policy) regular(path string, folders []string) (string, error) {
	final, isRegular, err := p.Files.Final(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", ErrMissing
	case err != nil:
		return "", fmt.Errorf("look at the file: %w", err)
	}
	for _, folder := range folders {
		root, _, err := p.Files.Final(folder)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return "", fmt.Errorf("look at the folder: %w", err)
		}
		if below(p.OS, root, final) {
			if !isRegular {
				return "", ErrNotFile
			}
			return final, nil
		}
	}
	return "", ErrLeadsOut
}

// checkSystem refuses a destination that is a file of Windows itself. The image's
// files are not ours to look at, and so the node's own stand for them: whatever is
// in its Windows folder under this name is Windows', unless it is the very same
// file. Then a driver's installation put it there, and nothing is replaced by
// anything else.
func (p Policy) checkSystem(source, destination string) error {
	if p.OS != ocispec.Windows || !below(p.OS, windowsFolder, destination) {
		return nil
	}
	_, isRegular, err := p.Files.Final(destination)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%w (what the node has there cannot be looked at: %w)", ErrSystemFile, err)
	case !isRegular:
		return ErrSystemFile
	}
	same, err := p.Files.SameContent(source, destination)
	switch {
	case err != nil:
		return fmt.Errorf("%w (what the node has there cannot be compared: %w)", ErrSystemFile, err)
	case !same:
		return ErrSystemFile
	}
	return nil
}
