// Package config compiles config.yaml and the inventory file into the node policy. Reading is
// strict: an unknown key or an invalid value is an error with the line and the path of the key.
//
// A file becomes a policy in these steps:
//
//  1. [Compiler.Compile] reads the bytes.
//  2. parse (document.go) returns a tree of YAML nodes, which have line numbers.
//  3. decode (decode.go) stores the tree, with the values of flags, in a [Configuration] and checks it.
//  4. build (build.go) checks keys that depend on each other, and returns the policy. The
//     devices of an inventory are built in inventory.go.
//  5. [Install] writes the result.
//
// One program on a node compiles config.yaml and the inventory: directx-advertiser, at its start and
// when one of the files changes, or 'dxctl config apply'. All programs act on the result, which
// packages policy and discovery/node read. If the files cannot be compiled, nothing is installed and
// the last policy stays in force.
//
// The configuration names a program that runs as the system, and directories that pods can read. So
// [Compiler.Compile] refuses config.yaml and the inventory unless only the system's administrators
// can write them. It accepts a volume of Kubernetes, such as a ConfigMap. On Linux, the volume must
// be mounted read-only, and not at the usual directory. On Windows, the system must own the file
// and its directory.
package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// The values of the keys apiVersion and kind in config.yaml.
const (
	APIVersion = "directx.microsoft.com/v1alpha1"
	Kind       = "Configuration"
)

const maxConfig = 1 << 20 // bytes

// Compiler compiles the configuration of a node.
type Compiler struct {
	// File is the path of config.yaml. If it does not exist and is not Required, the defaults apply.
	File     string
	Required bool
	// StateDir is the directory of the policy. Pods cannot have extra mounts from it or from
	// ReservedDirs, the other directories of this node's programs.
	StateDir     string
	ReservedDirs []string
	// NodeOS is the operating system of the node's containers: "windows" or "linux".
	NodeOS string
	// Flags take precedence over the file.
	Flags Flags
	// CheckRealShim returns an error if containers could not start with the real shim of this name
	// (shim.realShim) in place of that in the last policy. It may be nil.
	CheckRealShim func(stateDir, name string) error
	// InspectOnly compiles files of other machines, and files that any user can write. It ignores
	// the inventory that config.yaml names. The result is not for [Install].
	InspectOnly bool
}

// Compiled is a compiled configuration: the policy and, if the configuration names an inventory,
// its devices. The zero value differs from all valid ones.
type Compiled struct {
	Policy  policy.Policy
	Devices []discovery.Device
}

// Compile returns the compiled configuration. It writes nothing: see [Compiler.Apply]. Errors in a
// file are [KeyErrors].
func (c Compiler) Compile() (Compiled, error) {
	data, err := c.read(c.File, maxConfig)
	hash := hashOf(data)
	if errors.Is(err, fs.ErrNotExist) && !c.Required {
		data, hash, err = fmt.Appendf(nil, "apiVersion: %s\nkind: %s\n", APIVersion, Kind), "", nil
	}
	if err != nil {
		return Compiled{}, fmt.Errorf("read configuration: %w", err)
	}
	p, err := c.compile(data)
	if err != nil {
		return Compiled{}, fmt.Errorf("configuration: %w", err)
	}
	p.CompiledFrom.ConfigSHA256, p.CompiledFrom.Flags = hash, c.Flags.texts()
	if c.File != "" {
		p.CompiledFrom.Config, _ = filepath.Abs(c.File) // It fails only without a working directory.
	}
	var devices []discovery.Device
	if p.CompiledFrom.Inventory != "" && !c.InspectOnly {
		devices, p.CompiledFrom.InventorySHA256, err = c.ReadInventory(p.CompiledFrom.Inventory)
		p.UseInventory = err == nil
	}
	return Compiled{p, devices}, err
}

// ReadInventory returns the devices of an inventory file, and its hash.
func (c Compiler) ReadInventory(path string) ([]discovery.Device, string, error) {
	data, err := c.read(path, maxInventory)
	if err != nil {
		return nil, "", errlog.WithRemedy(fmt.Errorf("read inventory: %w", err), "set another inventory, or '' to discover the GPUs")
	}
	devices, err := ParseInventory(path, data)
	if err != nil {
		return nil, "", fmt.Errorf("inventory: %w", err)
	}
	return devices, hashOf(data), nil
}

// compile compiles the text of config.yaml and the flags.
func (c Compiler) compile(data []byte) (policy.Policy, error) {
	d, err := parse(c.File, data, maxConfig)
	if err != nil {
		return policy.Policy{}, err
	}
	configuration := defaultConfiguration()
	d.flags = c.Flags
	d.decode(&configuration)
	p := c.build(d, configuration)
	if err := d.err(); err != nil {
		return policy.Policy{}, err
	}
	return p, nil
}

// Check returns the errors of a configuration for nodes with this operating system.
func Check(name string, text []byte, nodeOS string) error {
	_, err := Compiler{File: name, NodeOS: nodeOS, InspectOnly: true}.compile(text)
	return err
}

// CheckAccess returns an error if [Compiler.Compile] refuses the file at path because other users
// can write it, or if the file cannot be read.
func CheckAccess(path string) error {
	_, err := Compiler{}.read(path, maxInventory)
	return err
}

// read reads a regular file (opening a named pipe would block) and checks who can write it, unless
// it is only inspected.
func (c Compiler) read(path string, limit int64) (data []byte, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	f, err := durable.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if !c.InspectOnly {
		if err := checkVolume(f, filepath.Dir(paths.Default().Config)); err != nil {
			return nil, err
		}
	}
	return io.ReadAll(io.LimitReader(f, limit+1))
}

// hashOf returns the hash of a file's content as [policy.CompiledFrom] has it.
func hashOf(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }
