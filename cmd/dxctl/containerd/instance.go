// Package containerd has what several commands need of a node's containerd: the flags that select it,
// its configuration file, the record of dxctl's changes to that file, and checks before a restart.
package containerd

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/criclient"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/tomledit"
)

// Instance is the containerd of a node, whether or not it runs.
type Instance struct {
	OS                    string // the node's, as in runtime.GOOS, which is the default
	ConfigFile, CRISocket string
	Major                 int // major version; 0 for that of the running containerd
}

// AddFlags adds the flags that select the containerd.
func (i *Instance) AddFlags(flags *pflag.FlagSet) {
	defaults := paths.Default()
	i.OS = cmp.Or(i.OS, runtime.GOOS)
	flags.StringVar(&i.ConfigFile, "containerd-config", defaults.ContainerdConfig, "containerd's configuration `FILE`")
	flags.StringVar(&i.CRISocket, "cri-socket", defaults.CRI, "containerd's CRI `SOCKET` or named pipe")
	flags.IntVar(&i.Major, "containerd-major", 0, "containerd's major version, 1 or 2 (default: that of the running containerd)")
}

// CheckFlags returns an error about flags that cannot be used.
func (i *Instance) CheckFlags() error {
	if i.Major < 0 || i.Major > 2 {
		return cli.UsageError("--containerd-major %d: want 1, 2, or 0", i.Major)
	}
	return nil
}

// AddShimDirFlag adds the flag --shim-dir.
func AddShimDirFlag(flags *pflag.FlagSet, dir *string) {
	flags.StringVar(dir, "shim-dir", paths.Default().ShimDir, "`DIRECTORY` of the runtime shim: that of containerd, or one on its PATH")
}

// CheckShimDir returns an error about a value of --shim-dir that cannot be used.
func CheckShimDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return cli.UsageError("--shim-dir %q is not an absolute path", dir)
	}
	return nil
}

// Release returns the release of the containerd that reads the configuration file. If the running
// one has not answered, the version of the file is used instead.
func (i *Instance) Release(running criclient.RunningConfig) containerdconfig.Release {
	return containerdconfig.Release{OS: i.OS, Major: cmp.Or(i.Major, running.Major)}
}

// ReadConfig reads the configuration file. A file that does not exist is empty.
func (i *Instance) ReadConfig(release containerdconfig.Release) (containerdconfig.Config, error) {
	file, err := ReadConfigFile(i.ConfigFile)
	if err != nil {
		return containerdconfig.Config{}, err
	}
	config, err := containerdconfig.Read(file.Text, release)
	return config, WithFileName(i.ConfigFile, err)
}

// ErrOverridden means that an imported file overrides the settings of 'dxctl runtime configure'.
var ErrOverridden = errors.New("replaces what is configured there")

// CheckImports returns an error for each file that c imports, directly or not, and that overrides
// the settings of 'dxctl runtime configure' ([ErrOverridden]), or with which containerd does not
// start. It sets c.NRI if one of them enables NRI.
// https://github.com/containerd/containerd/blob/v2.4.2/cmd/containerd/server/config/config.go
func (i *Instance) CheckImports(c *containerdconfig.Config, release containerdconfig.Release) (problems []error) {
	add := func(file string, err error) {
		if err != nil {
			problems = append(problems, WithFileName(file, err))
		}
	}
	files, err := resolveImports(i.ConfigFile, c.Imports)
	add(i.ConfigFile, err)
	for n := 0; n < len(files); n++ {
		name := files[n]
		if name == filepath.Clean(i.ConfigFile) || slices.Contains(files[:n], name) {
			continue
		}
		text, err := durable.Read(name, math.MaxInt64)
		if err != nil {
			add(name, err)
			continue
		}
		keys, imports, err := containerdconfig.Overrides(text, c, release)
		add(name, err)
		for _, key := range keys {
			err := fmt.Errorf("%s, which %s imports, has %s, which %w", name, i.ConfigFile, key, ErrOverridden)
			problems = append(problems, errlog.WithRemedy(err, "move that to "+i.ConfigFile))
		}
		imports, err = resolveImports(name, imports)
		add(name, err)
		files = append(files, imports...)
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

// WithFileName adds the name of a file to an error that does not name one.
func WithFileName(file string, err error) error {
	if _, hasName := errors.AsType[*fs.PathError](err); err == nil || hasName {
		return err
	}
	if _, hasLine := errors.AsType[tomledit.SyntaxError](err); hasLine {
		return fmt.Errorf("%s:%w", file, err)
	}
	return fmt.Errorf("%s: %w", file, err)
}
