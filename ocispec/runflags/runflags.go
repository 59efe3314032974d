// Package runflags converts [ocispec.Edits] to flags of ctr and nerdctl, which make the edits on
// nodes without the runtime shim.
package runflags

import (
	"encoding/csv"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/ocispec"
)

// The programs that run containers.
const (
	Ctr     = "ctr"
	Nerdctl = "nerdctl"
)

// ErrNoFlag reports that the program has no flag for an edit.
var ErrNoFlag = errors.New("has no flag for it")

// Flags returns the flags of the program's run command that make edits. An error matches
// [ErrNoFlag] if the program has no flag for an edit that the shim makes.
// resolve follows the symbolic links of a path.
//
// Two things differ from the shim: with ctr, a Linux container can create device nodes
// (access "rwm"), and nerdctl's mounts lack nosuid and nodev.
func Flags(
	program string, containerOS string, edits ocispec.Edits, resolve func(path string) (final string, regular bool, err error),
) ([]string, error) {
	var flags []string
	for _, d := range edits.WindowsDevices {
		// https://github.com/containerd/containerd/blob/v1.7.35/cmd/ctr/commands/run/run_windows.go
		// https://github.com/containerd/nerdctl/blob/v1.7.7/pkg/cmd/container/run_windows.go
		value := d.IDType + "://" + d.ID
		if program == Nerdctl {
			value = csvLine(value)
		}
		flags = append(flags, "--device", value)
	}
	for _, d := range edits.LinuxDevices {
		value, err := linuxDevice(program, d, resolve)
		if err != nil {
			return nil, err
		}
		flags = append(flags, "--device", value)
	}
	for _, m := range edits.Mounts {
		flag, value, err := mount(program, containerOS, m)
		if err != nil {
			return nil, err
		}
		flags = append(flags, flag, value)
	}
	for _, variable := range edits.Env {
		flags = append(flags, "--env", variable)
	}
	for _, flag := range flags {
		if strings.ContainsFunc(flag, unicode.IsControl) {
			return nil, fmt.Errorf("%s %w: %q has a control character", program, ErrNoFlag, flag)
		}
	}
	return flags, nil
}

// linuxDevice returns the value of --device. Both programs use the path of the
// device node on the host in the container too, and follow no symbolic link.
// https://github.com/containerd/containerd/blob/v1.7.35/oci/utils_unix.go
// https://github.com/containerd/nerdctl/blob/v1.7.7/pkg/cmd/container/run_cgroup_linux.go
func linuxDevice(
	program string, d ocispec.LinuxDevice, resolve func(path string) (final string, regular bool, err error),
) (string, error) {
	switch resolved, _, err := resolve(d.HostPath); {
	case err != nil:
		return "", fmt.Errorf("device node %s: %w", d.HostPath, err)
	case d.HostPath != d.Path:
		return "", fmt.Errorf("%s %w: device node %s must be %s in the container, and the program keeps the path", program, ErrNoFlag, d.HostPath, d.Path)
	case resolved != d.HostPath:
		return "", fmt.Errorf("%s %w: %s is a symbolic link to device node %s, which the program does not follow", program, ErrNoFlag, d.HostPath, resolved)
	case program == Ctr:
		return d.HostPath, nil
	case strings.Contains(d.HostPath, ":"):
		return "", fmt.Errorf("%s %w: %s has a colon", program, ErrNoFlag, d.HostPath)
	default:
		return csvLine(d.HostPath + ":" + ocispec.DeviceAccess(d.LinuxDevice)), nil
	}
}

// mount returns a mount's flag and its value.
// https://github.com/containerd/containerd/blob/v1.7.35/cmd/ctr/commands/run/run.go
// https://github.com/containerd/nerdctl/blob/v1.7.7/pkg/mountutil/mountutil_windows.go
// https://github.com/containerd/nerdctl/blob/v1.7.7/pkg/mountutil/mountutil_linux.go
func mount(program string, containerOS string, m specs.Mount) (flag, value string, err error) {
	if program == Ctr { // ctr reads a line of CSV, with options separated by colons.
		fields := []string{"src=" + m.Source, "dst=" + m.Destination, "options=" + strings.Join(m.Options, ":")}
		if m.Type != "" {
			fields = slices.Insert(fields, 0, "type="+m.Type)
		}
		return "--mount", csvLine(fields...), nil
	}
	windowsPath := regexp.MustCompile(`^[A-Za-z]:(\\[^\\/:*?"<>|]+)+$`)
	for _, path := range []string{m.Source, m.Destination} {
		switch {
		case containerOS == "windows" && !windowsPath.MatchString(path):
			return "", "", fmt.Errorf(`%s %w: want a path such as C:\dir\file, not %s`, program, ErrNoFlag, path)
		case containerOS == "linux" && strings.ContainsAny(path, `,:"`):
			return "", "", fmt.Errorf("%s %w: %q has a comma, colon or quotation mark", program, ErrNoFlag, path)
		}
	}
	if containerOS == "windows" { // nerdctl has no --mount there. The colon of a drive marks the second path.
		return "--volume", m.Source + ":" + m.Destination + ":ro", nil
	}
	// nerdctl's --mount has no quoting, and is converted to colon-separated form before it is parsed.
	return "--mount", "type=bind,src=" + m.Source + ",dst=" + m.Destination + ",ro,bind-propagation=rprivate", nil
}

// csvLine returns fields as a line of CSV, for a flag that takes a list.
func csvLine(fields ...string) string {
	var b strings.Builder
	_ = csv.NewWriter(&b).WriteAll([][]string{fields}) // A strings.Builder returns no errors.
	return strings.TrimSuffix(b.String(), "\n")
}
