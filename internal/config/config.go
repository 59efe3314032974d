// Package config reads our configuration file, config.yaml.
//
//	apiVersion: directx.microsoft.com/v1alpha1
//	kind: Configuration
//	stateDir: /var/lib/directx-nri         # the folder of the allocation records
//	inventory: /etc/directx-nri/gpus.yaml  # the file that describes this node's GPUs; on Windows they are found without
//	shim:
//	  runtime: containerd-shim-runc-v2     # the real shim: a path, or a name
//	  log: /var/lib/directx-nri/shim.log   # what the runtime shim did
//
// All keys but the first two may be left out. Reading is strict: an unknown key
// or a value of another type is an error that names the line.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"

	"directx-nri/internal/durable"
	"directx-nri/internal/paths"
	"directx-nri/internal/trusted"
)

// What the head of a configuration file says.
const (
	APIVersion = "directx.microsoft.com/v1alpha1"
	Kind       = "Configuration"
)

// Variable names the configuration file in a program's environment, in place of
// the one at the usual place.
const Variable = "DIRECTX_NRI_CONFIG"

// maxSize in bytes keeps a wrong file from taking the node's memory.
const maxSize = 1 << 20

// Config is the configuration, with its defaults in place.
type Config struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	// StateDir is our folder that survives a reboot.
	StateDir string `yaml:"stateDir"`
	// Inventory is the file that describes this node's GPUs. "" stands for the
	// GPUs that Windows tells of, and on Linux for none that are known.
	Inventory string `yaml:"inventory"`
	Shim      Shim   `yaml:"shim"`
}

// Shim is what the runtime shim is told.
type Shim struct {
	// Runtime is the real shim: an absolute path, or a file name that is looked
	// for beside our shim and on PATH. "" stands for the system's usual one.
	Runtime string `yaml:"runtime"`
	// Log is the file that our shim tells in what it did.
	Log string `yaml:"log"`
}

// Path returns where this process' configuration file is.
func Path() string {
	if path := os.Getenv(Variable); path != "" {
		return path
	}
	return paths.OfThisSystem().Config
}

// Default returns the configuration of a node without a file.
func Default() Config { return withDefaults(Config{APIVersion: APIVersion, Kind: Kind}) }

func withDefaults(c Config) Config {
	if c.StateDir == "" {
		c.StateDir = paths.OfThisSystem().State
	}
	if c.Shim.Log == "" {
		c.Shim.Log = filepath.Join(c.StateDir, "shim.log")
	}
	return c
}

// Read returns the configuration in the file at path, and the default when
// there is none. A file that anybody but the system could have written or put
// there is refused with an error that matches [durable.ErrNotPrivate] or
// [trusted.ErrUntrusted]: it names a program that runs as the system.
func Read(path string) (Config, error) {
	data, err := read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Default(), nil
	case err != nil:
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	err = durable.CheckPrivate(filepath.Dir(path))
	if err == nil {
		err = trusted.Check(path)
	}
	if err != nil {
		return Config{}, fmt.Errorf("read configuration %s: %w", path, err)
	}
	c, err := Parse(data)
	if err != nil {
		return Config{}, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

func read(path string) ([]byte, error) {
	f, err := durable.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	return data, errors.Join(err, f.Close())
}

// Parse returns the configuration that data holds, with its defaults.
func Parse(data []byte) (c Config, err error) {
	// The library reports what it does not expect of itself by panicking, also
	// where an input is to blame.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("it is not YAML: %v", r)
		}
	}()
	if len(data) > maxSize {
		return Config{}, fmt.Errorf("it has more than %d bytes", maxSize)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	switch err := decoder.Decode(&c); {
	case errors.Is(err, io.EOF):
		return Config{}, fmt.Errorf("it is empty: write apiVersion: %s and kind: %s", APIVersion, Kind)
	case err != nil:
		return Config{}, errors.New(oneLine(err))
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("there is a second YAML document: put everything into one")
	}
	if c.APIVersion != APIVersion || c.Kind != Kind {
		return Config{}, fmt.Errorf("it is of apiVersion %q and kind %q, and this program reads %q and %q", c.APIVersion, c.Kind, APIVersion, Kind)
	}
	for _, key := range []struct{ name, value string }{
		{"stateDir", c.StateDir}, {"inventory", c.Inventory}, {"shim.log", c.Shim.Log},
	} {
		if key.value != "" && !filepath.IsAbs(key.value) {
			return Config{}, fmt.Errorf("%s: %q is not an absolute path", key.name, key.value)
		}
	}
	if r := c.Shim.Runtime; r != "" && !filepath.IsAbs(r) && filepath.Base(r) != r {
		return Config{}, fmt.Errorf("shim.runtime: %q is neither an absolute path nor a file name", r)
	}
	return withDefaults(c), nil
}

// oneLine returns the library's message, which may list several problems, as
// one line without the library's name.
func oneLine(err error) string {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	text = strings.TrimPrefix(text, "unmarshal errors:")
	return strings.Join(strings.FieldsFunc(strings.ReplaceAll(text, "\n  ", "\n"), func(r rune) bool { return r == '\n' }), "; ")
}
