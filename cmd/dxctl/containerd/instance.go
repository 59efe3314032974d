// Package containerd changes the configuration of a node's containerd, restarts containerd,
// and undoes the change.
package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
)

// queryTimeout limits a query whose answer is optional.
const queryTimeout = 2 * time.Second

// programName is the name of containerd's process.
const programName = "containerd"

// Instance is the containerd of a node, whether or not it runs.
type Instance struct {
	OS         string // the node's, as in runtime.GOOS
	ConfigFile string
	CRISocket  string
	Major      int // 0 for that of the running containerd
}

// AddFlags adds the flags that select the containerd.
func (i *Instance) AddFlags(flags *pflag.FlagSet) {
	defaults := paths.Default()
	flags.SortFlags = false
	flags.StringVar(&i.ConfigFile, "containerd-config", defaults.ContainerdConfig, "containerd's configuration `FILE`")
	flags.StringVar(&i.CRISocket, "cri-socket", defaults.CRI, "containerd's CRI `SOCKET` or named pipe")
	flags.IntVar(&i.Major, "containerd-major", 0, "containerd's major version, 1 or 2 (default: the running one's)")
}

// Check returns an error about flags that cannot be used.
func (i *Instance) Check() error {
	if i.Major < 0 || i.Major > 2 {
		return cli.Usage("--containerd-major %d: want 1, 2, or 0", i.Major)
	}
	return nil
}

// Target returns the containerd that reads the configuration file.
func (i *Instance) Target(ctx context.Context) containerdconfig.Target {
	target := containerdconfig.Target{OS: i.OS, Major: i.Major}
	if target.Major != 0 {
		return target
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	running, _ := containerdconfig.Load(ctx, i.CRISocket) // Without an answer, the version of the file decides.
	target.Major = running.Major
	return target
}

// ReadFile reads the configuration file. A file that does not exist is empty.
func (i *Instance) ReadFile(target containerdconfig.Target) (containerdconfig.File, error) {
	read, err := readConfigFile(i.ConfigFile)
	if err != nil {
		return containerdconfig.File{}, err
	}
	file, err := containerdconfig.Read(read.text, target)
	return file, locate(i.ConfigFile, err)
}

// ErrOverridden reports that an imported file takes precedence over our settings.
var ErrOverridden = errors.New("replaces what is configured there")

// Imports returns an error for each file that f imports, directly or not, and that overrides
// what we configure ([ErrOverridden]) or cannot be used: containerd does not start
// then.
// https://github.com/containerd/containerd/blob/v2.4.2/cmd/containerd/server/config/config.go
func (i *Instance) Imports(f containerdconfig.File, target containerdconfig.Target) (problems []error) {
	add := func(file string, err error) {
		if err != nil {
			problems = append(problems, locate(file, err))
		}
	}
	read := map[string]bool{filepath.Clean(i.ConfigFile): true}
	pending, err := resolveImports(i.ConfigFile, f.Imports)
	add(i.ConfigFile, err)
	for len(pending) > 0 {
		name := pending[0]
		pending = pending[1:]
		if read[name] {
			continue
		}
		read[name] = true
		text, err := durable.Read(name, math.MaxInt64)
		var keys, imports []string
		if err == nil {
			keys, imports, err = containerdconfig.Overrides(text, f, target)
		}
		add(name, err)
		for _, key := range keys {
			problems = append(problems, fmt.Errorf("%s, which %s imports, has %s, which %w: move that to %[2]s", name, i.ConfigFile, key, ErrOverridden))
		}
		imports, err = resolveImports(name, imports)
		add(name, err)
		pending = append(pending, imports...)
	}
	return problems
}

// resolveImports returns the files that a configuration file imports.
func resolveImports(file string, imports []string) (files []string, err error) {
	for _, name := range imports {
		if !filepath.IsAbs(name) {
			name = filepath.Join(filepath.Dir(file), name)
		}
		found := []string{filepath.Clean(name)}
		if strings.Contains(name, "*") {
			if found, err = filepath.Glob(name); err != nil {
				return nil, fmt.Errorf("imports: %s: %w", name, err)
			}
		}
		files = append(files, found...)
	}
	return files, nil
}

// locate adds the name of a file to an error that does not have it.
func locate(file string, err error) error {
	var syntax containerdconfig.SyntaxError
	var named *fs.PathError
	switch {
	case err == nil || errors.As(err, &named):
		return err
	case errors.As(err, &syntax):
		return fmt.Errorf("%s:%w", file, err)
	}
	return fmt.Errorf("%s: %w", file, err)
}
