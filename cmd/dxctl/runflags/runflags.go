// Package runflags expresses the edits of the runtime shim as flags of ctr and
// nerdctl, for nodes without the shim, and quotes them for shells.
package runflags

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/directx-nri/directx-nri/decision"
	"github.com/directx-nri/directx-nri/ocispec"
)

// Program is a program that runs containers.
type Program string

// The programs.
const (
	Ctr     Program = "ctr"
	Nerdctl Program = "nerdctl"
)

// RuntimeName is the name by which containerd finds the runtime shim.
const RuntimeName = "io.containerd.directx.v1"

// WithShim returns the flags that run a container with the runtime shim and request
// GPUs, in the form that [decision.Select] reads. Images cannot set annotations. On
// Windows, ctr 1.7 drops them.
func WithShim(os ocispec.OS, request string) []string {
	flags := []string{"--runtime", RuntimeName}
	if os == ocispec.Windows {
		return append(flags, env, decision.VisibleVariable+"="+request)
	}
	return append(flags, "--annotation", decision.VisibleAnnotation+"="+request)
}

// ErrNoFlag is the error of an edit that the program has no flag for.
var ErrNoFlag = errors.New("has no flag for it")

// Flags returns the flags of the program's run command that make edits for devices. An
// error matches [ErrNoFlag] if the shim could make an edit that flags cannot.
//
// Two things differ from the shim: with ctr, a Linux container can create device nodes
// (access "rwm"), and nerdctl's mounts lack nosuid and nodev.
func Flags(program Program, os ocispec.OS, edits ocispec.Edits, files ocispec.Files) (flags []string, err error) {
	add := func(flag, value string, invalid error) {
		flags = append(flags, flag, value)
		err = cmp.Or(err, invalid)
	}
	for _, d := range edits.WindowsDevices {
		value, err := windowsDevice(program, d)
		add("--device", value, err)
	}
	for _, d := range edits.LinuxDevices {
		value, err := linuxDevice(program, d, files)
		add("--device", value, err)
	}
	for _, m := range edits.Mounts {
		add(mount(program, os, m))
	}
	for _, variable := range edits.Env {
		add(env, variable, checkText(program, variable))
	}
	if err != nil {
		return nil, err
	}
	return flags, nil
}

// env is the flag of both programs for environment variables.
const env = "--env"

// WithoutVariable returns flags without the environment variable name, and reports
// whether they had it.
func WithoutVariable(flags []string, name string) ([]string, bool) {
	for i := 0; i+1 < len(flags); i++ {
		if flags[i] == env && strings.HasPrefix(flags[i+1], name+"=") {
			return slices.Concat(flags[:i], flags[i+2:]), true
		}
	}
	return flags, false
}

// windowsDevice returns the value of --device.
// https://github.com/containerd/containerd/blob/v1.7.35/cmd/ctr/commands/run/run_windows.go
// https://github.com/containerd/nerdctl/blob/v1.7.7/pkg/cmd/container/run_windows.go
func windowsDevice(program Program, d specs.WindowsDevice) (string, error) {
	value := d.IDType + "://" + d.ID
	if program == Nerdctl {
		return csvLine(program, value)
	}
	return value, checkText(program, value)
}

// linuxDevice returns the value of --device. Both programs use the path of the
// device node on the host in the container too, and follow no symbolic link.
// https://github.com/containerd/containerd/blob/v1.7.35/oci/utils_unix.go
// https://github.com/containerd/nerdctl/blob/v1.7.7/pkg/cmd/container/run_cgroup_linux.go
func linuxDevice(program Program, d ocispec.LinuxDevice, files ocispec.Files) (string, error) {
	host := d.HostPath
	paths, errs := files.ResolveAll([]string{host})
	switch resolved, err := paths[0], errs[0]; {
	case err != nil:
		return "", fmt.Errorf("device node %s: %w", host, err)
	case host != d.Path:
		return "", fmt.Errorf("%s %w: device node %s must be %s in the container, and the program keeps the path", program, ErrNoFlag, host, d.Path)
	case resolved != host:
		return "", fmt.Errorf("%s %w: %s is a symbolic link to device node %s, which the program does not follow", program, ErrNoFlag, host, resolved)
	}
	if program == Ctr {
		return host, checkText(program, host)
	}
	if strings.Contains(host, ":") {
		return "", fmt.Errorf("%s %w: %s has a colon", program, ErrNoFlag, host)
	}
	return csvLine(program, host+":"+ocispec.Access(d.LinuxDevice))
}

// mount returns a mount's flag and its value.
func mount(program Program, os ocispec.OS, m specs.Mount) (flag, value string, err error) {
	flag, encode := "--mount", nerdctlMount
	switch {
	case program == Ctr:
		encode = ctrMount
	case os == ocispec.Windows:
		flag, encode = "--volume", nerdctlVolume
	}
	value, err = encode(m)
	return flag, value, err
}

// ctrMount returns the value of ctr's --mount: a line of CSV, with options separated
// by colons.
// https://github.com/containerd/containerd/blob/v1.7.35/cmd/ctr/commands/run/run.go
func ctrMount(m specs.Mount) (string, error) {
	var fields []string
	if m.Type != "" {
		fields = append(fields, "type="+m.Type)
	}
	fields = append(fields, "src="+m.Source, "dst="+m.Destination, "options="+strings.Join(m.Options, ":"))
	return csvLine(Ctr, fields...)
}

// nerdctlMount returns the value of nerdctl's --mount on Linux. It has no quoting, and
// is converted to colon-separated form before it is parsed.
// https://github.com/containerd/nerdctl/blob/v1.7.7/pkg/mountutil/mountutil_linux.go
func nerdctlMount(m specs.Mount) (string, error) {
	for _, path := range []string{m.Source, m.Destination} {
		if strings.ContainsAny(path, `,:"`) {
			return "", fmt.Errorf("%s %w: %s has a comma, colon or quotation mark", Nerdctl, ErrNoFlag, path)
		}
	}
	value := "type=bind,src=" + m.Source + ",dst=" + m.Destination + ",ro,bind-propagation=rprivate"
	return value, checkText(Nerdctl, value)
}

// nerdctlVolume returns the value of nerdctl's --volume on Windows, where it has no
// --mount. The colon of a drive marks the second path.
// https://github.com/containerd/nerdctl/blob/v1.7.7/pkg/mountutil/mountutil_windows.go
func nerdctlVolume(m specs.Mount) (string, error) {
	path := regexp.MustCompile(`^[A-Za-z]:(\\[^\\/:*?"<>|]+)+$`)
	for _, p := range []string{m.Source, m.Destination} {
		if !path.MatchString(p) {
			return "", fmt.Errorf("%s %w: want a path such as C:\\dir\\file, not %s", Nerdctl, ErrNoFlag, p)
		}
	}
	value := m.Source + ":" + m.Destination + ":ro"
	return value, checkText(Nerdctl, value)
}

// csvLine returns fields as a line of CSV, for a flag that takes a list.
func csvLine(program Program, fields ...string) (string, error) {
	if err := checkText(program, fields...); err != nil {
		return "", err
	}
	var b strings.Builder
	err := csv.NewWriter(&b).WriteAll([][]string{fields})
	return strings.TrimSuffix(b.String(), "\n"), err
}

// checkText refuses control characters.
func checkText(program Program, texts ...string) error {
	for _, text := range texts {
		if strings.ContainsFunc(text, unicode.IsControl) {
			return fmt.Errorf("%s %w: %q has a control character", program, ErrNoFlag, text)
		}
	}
	return nil
}
