package extramounts

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/ocispec"
)

// Errors of [Policy.Mounts], in addition to those of paths.
var (
	errOff         = errors.New("extra mounts are disabled on this node; remove the request, or ask the administrator to set extraMounts.sources")
	errTooMany     = errors.New("too many files; request fewer, or ask the administrator to raise extraMounts.max")
	errSource      = errors.New("files from there are not allowed; use a path relative to the driver store, or ask the administrator to allow the directory in extraMounts")
	errNoStore     = errors.New("none of the container's GPUs has a driver store for a relative path; use an absolute path in a directory that extraMounts allows")
	errMissing     = errors.New("no such file; correct the path")
	errNotFile     = errors.New("not a regular file; request single files")
	errLeadsOut    = errors.New("a link or junction leads out of the allowed directory; request the file itself")
	errDestination = errors.New("destination is not allowed; use a file name, or a path in a directory of extraMounts.destinations")
	errDirectory   = errors.New("directory is only for a destination that is a file name, on Windows; remove it")
	errSystemFile  = errors.New("a file of Windows cannot be replaced; use another name")
	errTaken       = errors.New("another file is mounted there; use another name")
)

const (
	windowsDir = `C:\Windows`
	// linuxDir is where Linux programs look for Direct3D's libraries.
	// https://learn.microsoft.com/windows/ai/directml/gpu-accelerated-training
	linuxDir = "/usr/lib/wsl/lib"
)

// Files reads the node's files.
type Files interface {
	// Resolve returns path with all links and junctions followed and short names
	// replaced by long ones. regular reports whether it is a regular file. The error
	// matches [fs.ErrNotExist] if there is no file.
	Resolve(path string) (final string, regular bool, err error)
	// SameContent reports whether two files have the same content.
	SameContent(a, b string) (bool, error)
}

// Policy decides about the lists of containers of an operating system.
type Policy struct {
	policy.ExtraMounts
	OS    ocispec.OS
	Files Files
}

// Mounts returns the mounts of the files on lists, for a container that gets devices and
// the mounts given. An error names the list, the refused file, the cause and the remedy.
//
// A file that the container already gets at the same destination is skipped.
func (p Policy) Mounts(lists []List, devices []discovery.Device, given []specs.Mount) ([]specs.Mount, error) {
	var entries []entry
	var origins []string
	for _, list := range lists {
		parsed, err := list.parse()
		if err != nil {
			return nil, fmt.Errorf("extra mounts: %w; correct it", err)
		}
		entries, origins = append(entries, parsed...), append(origins, list.Origin)
	}
	mounts, err := p.mounts(entries, devices, given)
	if err != nil {
		return nil, fmt.Errorf("extra mounts (%s): %w", strings.Join(origins, ", "), err)
	}
	return mounts, nil
}

func (p Policy) mounts(entries []entry, devices []discovery.Device, given []specs.Mount) ([]specs.Mount, error) {
	switch {
	case len(entries) == 0:
		return nil, nil
	case p.Sources != policy.MountDriverStore && p.Sources != policy.MountHostDirectories:
		return nil, errOff
	case len(entries) > p.Max:
		return nil, fmt.Errorf("%d files requested, %d allowed: %w", len(entries), p.Max, errTooMany)
	}
	taken := map[string]string{}
	for _, m := range given {
		taken[ocispec.DestinationKey(p.OS, m.Destination)] = m.Source
	}
	var mounts []specs.Mount
	for _, entry := range entries {
		source, destination, err := p.resolve(entry, devices)
		if err != nil {
			return nil, fmt.Errorf("source %s: %w", quote(entry.Source), err)
		}
		key := ocispec.DestinationKey(p.OS, destination)
		switch other, isTaken := taken[key]; {
		case !isTaken:
			if err := p.checkSystem(source, destination); err != nil {
				return nil, fmt.Errorf("destination %s: %w", quote(destination), err)
			}
			taken[key] = source
			mounts = append(mounts, ocispec.ReadOnlyMount(p.OS, source, destination))
		case ocispec.DestinationKey(p.OS, other) != ocispec.DestinationKey(p.OS, source):
			return nil, fmt.Errorf("destination %s: %w", quote(destination), errTaken)
		}
	}
	return mounts, nil
}

// resolve returns the node's file that entry leads to, and its destination.
func (p Policy) resolve(entry entry, devices []discovery.Device) (source, destination string, err error) {
	from, err := parsePath(p.OS, entry.Source)
	if err != nil {
		return "", "", err
	}
	// Checks of the path come first: an error must not reveal which files exist
	// outside of the allowed directories.
	if destination, err = p.destination(entry, from); err != nil {
		return "", "", err
	}
	if from.absolute {
		source, err = p.hostFile(from.path)
	} else {
		source, err = p.driverFile(from.path, devices)
	}
	return source, destination, err
}

// destination returns the path in the container.
func (p Policy) destination(entry entry, from plainPath) (string, error) {
	text := entry.Destination
	if text == "" {
		text = base(from.path)
	}
	to, err := parsePath(p.OS, text)
	if err != nil {
		return "", fmt.Errorf("destination: %w", err)
	}
	// The directories for destinations that are file names.
	path, dirs := to.path, []string{ocispec.System32, ocispec.SysWOW64}
	if p.OS == ocispec.Linux {
		dirs = []string{linuxDir}
	}
	switch {
	case entry.Directory != "" && (to.absolute || p.OS != ocispec.Windows):
		return "", errDirectory
	case !to.absolute && base(to.path) != to.path:
		return "", fmt.Errorf("destination %s: %w", quote(text), errDestination)
	case entry.Directory == policy.SysWOW64:
		path = join(p.OS, dirs[1], to.path)
	case !to.absolute:
		path = join(p.OS, dirs[0], to.path)
	}
	if len(p.Destinations) > 0 {
		dirs = p.Destinations
	}
	if !slices.ContainsFunc(dirs, func(dir string) bool { return below(p.OS, dir, path) }) {
		return "", fmt.Errorf("destination %s: %w", quote(path), errDestination)
	}
	return path, nil
}

// hostFile returns the file that an absolute path leads to.
func (p Policy) hostFile(path string) (string, error) {
	if p.Sources != policy.MountHostDirectories || !slices.ContainsFunc(p.HostDirectories, func(f string) bool { return below(p.OS, f, path) }) {
		return "", errSource
	}
	return p.regular(path, p.HostDirectories)
}

// driverFile returns the file that a relative path leads to in the first driver
// store directory that has it.
func (p Policy) driverFile(path string, devices []discovery.Device) (string, error) {
	missing := errNoStore
	if p.OS == ocispec.Linux {
		return "", missing
	}
	for _, d := range devices {
		if d.DriverStorePath == "" {
			continue
		}
		source, err := p.regular(join(p.OS, d.DriverStorePath, path), []string{d.DriverStorePath})
		if !errors.Is(err, errMissing) {
			return source, err
		}
		missing = errMissing
	}
	return "", missing
}

// regular returns the regular file that path leads to, below what one of
// dirs leads to.
func (p Policy) regular(path string, dirs []string) (string, error) {
	final, isRegular, err := p.Files.Resolve(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", errMissing
	case err != nil:
		return "", fmt.Errorf("read file: %w", err)
	}
	for _, dir := range dirs {
		root, _, err := p.Files.Resolve(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return "", fmt.Errorf("read directory: %w", err)
		}
		if below(p.OS, root, final) {
			if !isRegular {
				return "", errNotFile
			}
			return final, nil
		}
	}
	return "", errLeadsOut
}

// checkSystem refuses a destination that is a file of Windows. The node's files
// stand for the image's: a file of that name in the node's Windows directory is a
// file of Windows, unless it has the same content as source. Then the driver's
// installation copied it there.
func (p Policy) checkSystem(source, destination string) error {
	if p.OS != ocispec.Windows || !below(p.OS, windowsDir, destination) {
		return nil
	}
	_, isRegular, err := p.Files.Resolve(destination)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("%w (checking the node's own file failed: %w)", errSystemFile, err)
	case !isRegular:
		return errSystemFile
	}
	same, err := p.Files.SameContent(source, destination)
	switch {
	case err != nil:
		return fmt.Errorf("%w (comparing the node's own file failed: %w)", errSystemFile, err)
	case !same:
		return errSystemFile
	}
	return nil
}
