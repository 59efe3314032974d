// Package config reads our configuration, config.yaml: one file for all of our
// programs. docs/configuration.md has all keys.
//
//	apiVersion: directx.microsoft.com/v1alpha1
//	kind: Configuration
//	inventory: /etc/directx-nri/gpus.yaml  # the file that describes this node's GPUs; on Windows they are found without
//	resources:
//	  - name: directx.microsoft.com/display
//	    match: {kind: display, vendor: nvidia}
//	    replicas: 4
//
// All keys but the first two may be left out. Reading is strict: an unknown key,
// or a value that is not as it must be, is an error that names the line and the
// key's path. Each scalar has a variable of the environment too, which counts
// more than the file, and most a flag, which counts more than both; see
// [Settings].
//
// # Who may write the file
//
// It names a program that runs as the system, and folders of the node that pods
// may read. So [Read], by which the shim and dxctl read it, refuses a file that
// anybody but the system's administrators could have written, or put into its
// folder. [ReadVolume] is for what a daemon is told to read by name, and takes a
// volume of Kubernetes too, such as a ConfigMap.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"directx-nri/internal/durable"
	"directx-nri/internal/paths"
	"directx-nri/internal/strictyaml"
)

// What the head of a configuration file says.
const (
	APIVersion = "directx.microsoft.com/v1alpha1"
	Kind       = "Configuration"
)

// Variable names the configuration file in a program's environment, in place of
// the one at the usual place.
const Variable = "DIRECTX_NRI_CONFIG"

// LastGood is what the name of a configuration file's last good copy has behind
// the file's own name. The daemons keep it, and the shim, which keeps nothing,
// reads it when the file has turned bad.
const LastGood = ".last-good"

// maxSize in bytes keeps a wrong file from taking the node's memory.
const maxSize = 1 << 20

// Path returns where this process' configuration file is.
func Path() string {
	if path := os.Getenv(Variable); path != "" {
		return path
	}
	return paths.Default().Config
}

// Default returns the configuration of a node without a file.
func Default() Config {
	d := newDraft()
	d.finish()
	return d.Config
}

// Fallback returns what can be had without the file: the defaults, and those of
// overrides that are not wrong.
func Fallback(overrides ...Override) Config {
	for {
		c, err := parse("", nil, overrides)
		wrong := (*OverrideError)(nil)
		switch {
		case err == nil:
			return c
		case !errors.As(err, &wrong):
			return Default()
		}
		overrides = slices.DeleteFunc(slices.Clone(overrides), func(o Override) bool { return o.Origin == wrong.Origin })
	}
}

// defaults are those that depend on no other setting.
func defaults() Config {
	places := paths.Default()
	return Config{
		StateDir: places.State, RuntimeDir: places.Runtime, HostRoot: hostRoot(runtime.GOOS), ContainerOS: runtime.GOOS,
		ServedBy:   servedBy(runtime.GOOS),
		Kubelet:    Kubelet{DevicePlugins: places.DevicePlugins, PodResources: places.PodResources},
		Containerd: Containerd{NRISocket: places.NRI, NRIIndex: "50", CRISocket: places.CRI},
		Log:        Log{Level: "info", Format: "text"},
		Assignment: AssignAuto, Injection: InjectByRuntime,
		ExtraMounts:     ExtraMounts{Sources: MountDriverStore, Max: 16},
		VisibilityHints: true,
	}
}

// servedBy is the shim on Windows, where containerd calls no NRI plugin.
func servedBy(goos string) string {
	if goos == "windows" {
		return ServedByShim
	}
	return ServedByNRI
}

// hostRoot is nothing on Windows, where a node has a root for each drive and our
// programs run on the node itself.
func hostRoot(goos string) string {
	if goos == "windows" {
		return ""
	}
	return "/"
}

// Read returns the configuration in the file at path with what counts more, the
// later ones most; without a file, the defaults are in its place. A file that
// anybody but the system could have written or put there is refused with an
// error that matches [durable.ErrNotPrivate] or [durable.ErrUntrusted].
func Read(path string, overrides ...Override) (Config, error) {
	return readChecked(path, checkStrictly, overrides)
}

// ReadVolume is [Read] for a file that a daemon was told by name, which may be in
// a volume of Kubernetes. There the file's folder is open to everybody who can
// reach it, and so nobody but the kubelet: on Linux it is taken when it is on a
// file system that is mounted read-only, and on Windows when the folder and the
// file belong to the system, whoever else may write to C:\var\lib\kubelet. The
// file itself must be the system's as for Read.
func ReadVolume(path string, overrides ...Override) (Config, error) {
	return readChecked(path, checkVolume, overrides)
}

// CheckVolume is the check of [ReadVolume] alone, for whoever hands the file at
// path on to the place where [Read] reads it.
func CheckVolume(path string) error { return checkVolume(path) }

// ReadOrLastGood is [Read], and where the file has turned bad, its last good
// copy. bad is then what is wrong with the file. A file that others could have
// written is no reason to read the copy.
func ReadOrLastGood(path string, overrides ...Override) (c Config, bad, err error) {
	c, err = Read(path, overrides...)
	if problems := (strictyaml.Problems)(nil); err == nil || !errors.As(err, &problems) {
		return c, nil, err
	}
	copied := path + LastGood
	if _, missing := os.Lstat(copied); missing != nil {
		return Config{}, nil, err
	}
	last, lastErr := Read(copied, overrides...)
	if lastErr != nil {
		return Config{}, nil, err
	}
	return last, err, nil
}

// Inspect is [Read] for somebody who asks what a file says and does nothing of it:
// whoever may have written it. A file that is not there is an error.
func Inspect(path string, overrides ...Override) (Config, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return Config{}, fmt.Errorf("read configuration: %w", err)
	case !info.Mode().IsRegular():
		// To open a named pipe is to wait for somebody who writes to it, which no
		// signal ends.
		return Config{}, fmt.Errorf("read configuration: %s is not a regular file; name a file that has the configuration", path)
	}
	return readChecked(path, func(string) error { return nil }, overrides)
}

func checkStrictly(path string) error {
	if err := durable.CheckPrivate(filepath.Dir(path)); err != nil {
		return err
	}
	return durable.CheckFile(path)
}

func readChecked(path string, check func(path string) error, overrides []Override) (Config, error) {
	data, err := read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c, err := parse(path, nil, overrides)
		if err != nil {
			return Config{}, fmt.Errorf("configuration: %w", err)
		}
		return c, nil
	case err != nil:
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	if err := check(path); err != nil {
		return Config{}, fmt.Errorf("read configuration %s: %w", path, err)
	}
	c, err := parse(path, &data, overrides)
	if err != nil {
		return Config{}, fmt.Errorf("configuration: %w", err)
	}
	return c, nil
}

func read(path string) ([]byte, error) { return durable.Read(path, maxSize+1) }

// Parse returns the configuration that data holds, with its defaults and what
// counts more. The error tells of every problem, and [strictyaml.Problems] are
// found in it with errors.As; an override's is an [OverrideError].
func Parse(data []byte, overrides ...Override) (Config, error) {
	return parse("config.yaml", &data, overrides)
}

// maxProblems is how many problems an error tells in full.
const maxProblems = 10

// invalid tells the problems of a file in one line.
type invalid struct{ problems strictyaml.Problems }

func (e invalid) Error() string {
	var lines []string
	for i, p := range e.problems {
		if i == maxProblems {
			lines = append(lines, fmt.Sprintf("and %d more", len(e.problems)-i))
			break
		}
		lines = append(lines, p.Error())
	}
	return strings.Join(lines, "; ")
}

func (e invalid) Unwrap() error { return e.problems }
