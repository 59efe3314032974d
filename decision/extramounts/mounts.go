package extramounts

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/policy"
	"github.com/directx-nri/directx-nri/ocispec"
	"github.com/directx-nri/directx-nri/ocispec/gpuedits"
)

// ErrRead means that a file of the node cannot be read. The request is not the cause.
var ErrRead = errors.New("read the node's files")

// Errors of [Resolver.Mounts], in addition to those of lists and paths.
var (
	errOff         = errors.New("extra mounts are disabled on this node")
	errTooMany     = errors.New("too many files")
	errSource      = errors.New("files of this directory are not allowed")
	errNoStore     = errors.New("none of the container's GPUs has a driver store for a relative path")
	errMissing     = errors.New("no such file")
	errNotFile     = errors.New("not a regular file")
	errLeadsOut    = errors.New("a link or junction leads out of the allowed directory")
	errDestination = errors.New("files are not allowed there")
	errSystemFile  = errors.New("a file of Windows cannot be replaced")
	errTaken       = errors.New("another file is mounted there")
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
	// SameContent reports whether two regular files have the same content. Their paths are those that Resolve returns.
	SameContent(a, b string) (bool, error)
}

// Resolver resolves the requests of containers of an operating system.
type Resolver struct {
	policy.ExtraMounts
	OS    string
	Files Files
}

// Mounts returns the mounts of the files on lists, for a container that gets devices and already has
// the existing mounts. An error names the list, the refused file and the cause.
//
// A file that the container already gets at the same destination is skipped; another file there is
// an error.
func (r Resolver) Mounts(lists []List, devices []discovery.Device, existing []specs.Mount) ([]specs.Mount, error) {
	var files []requestedFile
	var origins []string
	for _, list := range lists {
		parsed, err := list.parse()
		if err != nil {
			return nil, fmt.Errorf("extra mounts: %w", err)
		}
		files, origins = append(files, parsed...), append(origins, list.Origin)
	}
	mounts, err := r.mounts(files, devices, existing)
	if err != nil {
		return nil, fmt.Errorf("extra mounts (%s): %w", strings.Join(origins, ", "), err)
	}
	return mounts, nil
}

func (r Resolver) mounts(files []requestedFile, devices []discovery.Device, existing []specs.Mount) ([]specs.Mount, error) {
	switch {
	case len(files) == 0:
		return nil, nil
	case r.Sources != policy.MountSourcesDriverStore && r.Sources != policy.MountSourcesHostDirectories:
		return nil, errOff
	case len(files) > r.Max:
		return nil, fmt.Errorf("%d files requested, %d allowed: %w", len(files), r.Max, errTooMany)
	}
	sources := map[string]string{} // by destination
	for _, m := range existing {
		sources[ocispec.DestinationKey(r.OS, m.Destination)] = m.Source
	}
	var mounts []specs.Mount
	for _, file := range files {
		source, destination, err := r.resolve(file, devices)
		if err != nil {
			return nil, fmt.Errorf("source %s: %w", quote(file.Source), err)
		}
		key := ocispec.DestinationKey(r.OS, destination)
		other, isTaken := sources[key]
		if isTaken && ocispec.DestinationKey(r.OS, other) == ocispec.DestinationKey(r.OS, source) {
			continue
		}
		if isTaken {
			err = errTaken
		} else {
			err = r.checkNotSystemFile(source, destination)
		}
		if err != nil {
			return nil, fmt.Errorf("destination %s: %w", quote(destination), err)
		}
		sources[key] = source
		mounts = append(mounts, ocispec.ReadOnlyMount(r.OS, source, destination))
	}
	return mounts, nil
}

// resolve returns the file of the node and its path in the container.
func (r Resolver) resolve(file requestedFile, devices []discovery.Device) (source, destination string, err error) {
	from, absolute, err := parsePath(r.OS, file.Source)
	if err != nil {
		return "", "", err
	}
	// The checks of both paths come first: an error must not reveal which files exist outside
	// of the allowed directories.
	to := cmp.Or(file.Destination, baseName(from))
	if destination, err = r.destination(to); err != nil {
		return "", "", fmt.Errorf("destination %s: %w", quote(to), err)
	}
	if absolute {
		source, err = r.hostFile(from)
	} else {
		source, err = r.driverStoreFile(from, devices)
	}
	return source, destination, err
}

// destination returns the path in the container for a destination of a request. A name is one in the first of
// the default directories.
func (r Resolver) destination(text string) (string, error) {
	path, absolute, err := parsePath(r.OS, text)
	if err != nil {
		return "", err
	}
	if !absolute && baseName(path) != path {
		return "", errDestination
	}
	defaults := []string{gpuedits.System32Dir, gpuedits.SysWOW64Dir}
	if r.OS == "linux" {
		defaults = []string{linuxDir}
	}
	if !absolute {
		path = joinPath(r.OS, defaults[0], path)
	}
	allowed := r.Destinations
	if len(allowed) == 0 {
		allowed = defaults
	}
	if !r.isBelowAny(allowed, path) {
		return "", errDestination
	}
	return path, nil
}

func (r Resolver) isBelowAny(dirs []string, path string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return isBelow(r.OS, dir, path) })
}

// hostFile returns the file that an absolute path leads to.
func (r Resolver) hostFile(path string) (string, error) {
	if r.Sources != policy.MountSourcesHostDirectories || !r.isBelowAny(r.HostDirectories, path) {
		return "", errSource
	}
	return r.regularFile(path, r.HostDirectories)
}

// driverStoreFile returns the file that a relative path leads to in the first driver store directory
// that has it.
func (r Resolver) driverStoreFile(path string, devices []discovery.Device) (string, error) {
	if r.OS == "linux" {
		return "", errNoStore
	}
	err := errNoStore
	for _, d := range devices {
		if d.DriverStorePath == "" {
			continue
		}
		var source string
		source, err = r.regularFile(joinPath(r.OS, d.DriverStorePath, path), []string{d.DriverStorePath})
		if !errors.Is(err, errMissing) {
			return source, err
		}
	}
	return "", err
}

// regularFile returns the regular file that path leads to. It must be below what one of dirs
// leads to.
func (r Resolver) regularFile(path string, dirs []string) (string, error) {
	final, isRegular, err := r.Files.Resolve(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", errMissing
	case err != nil:
		return "", fmt.Errorf("%w: %w", ErrRead, err)
	}
	for _, dir := range dirs {
		root, _, err := r.Files.Resolve(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrRead, err)
		}
		if !isBelow(r.OS, root, final) {
			continue
		}
		if !isRegular {
			return "", errNotFile
		}
		return final, nil
	}
	return "", errLeadsOut
}

// checkNotSystemFile returns an error if destination is a file of Windows. The image's files are not
// known here, so the node's are checked: a file of that name in the node's Windows directory is a
// file of Windows, unless it has the same content as source. Then the driver's installation has
// copied it there.
func (r Resolver) checkNotSystemFile(source, destination string) error {
	if r.OS != "windows" || !isBelow(r.OS, windowsDir, destination) {
		return nil
	}
	final, isRegular, err := r.Files.Resolve(destination)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	isCopy := false
	if err == nil && isRegular {
		isCopy, err = r.Files.SameContent(source, final)
	}
	switch {
	case err != nil:
		return fmt.Errorf("reading the node's own file failed: %w: %w", err, errSystemFile)
	case !isCopy:
		return errSystemFile
	}
	return nil
}
