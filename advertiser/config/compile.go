// Package config compiles config.yaml and the inventory file into the node policy. Each file is one
// YAML document. Its JSON schema, which the project ships, validates it. Errors have the paths of
// their keys: first all that the schema finds, then all others.
//
// One program on a node compiles: directx-advertiser, at its start and when one of the files changes,
// or 'dxctl config apply'. All programs act on the result, which packages policy and discovery/node
// read. If the files cannot be compiled, nothing is installed and the last policy stays in force.
//
// The configuration names directories that pods can read. So [Compiler.Compile] refuses config.yaml
// and the inventory unless only the system's administrators can write them. It accepts a volume of
// Kubernetes, such as a ConfigMap. On Linux, the volume must be mounted read-only, and not at the
// usual directory. On Windows, the system must own the file and its directory.
package config

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// The values of the keys apiVersion and kind in config.yaml.
const (
	APIVersion = "directx.microsoft.com/v1alpha1"
	Kind       = "Configuration"
)

const maxSize = 4 << 20 // of a file, in bytes

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
	// Flags are keys that take precedence over the file: see [ReadFlags].
	Flags map[string]any
	// InspectOnly compiles files of other machines, and files that any user can write. It ignores
	// the inventory that config.yaml names. The result is not for [Compiler.Apply].
	InspectOnly bool
	// Stdin, unless it is nil, is the content of the file "-".
	Stdin []byte
}

// Compiled is a compiled configuration: the policy and, if the configuration names an inventory,
// its devices. The zero value differs from all valid ones.
type Compiled struct {
	Policy  policy.Policy
	Devices []discovery.Device
}

// Compile returns the compiled configuration. It writes nothing: see [Compiler.Apply].
func (c Compiler) Compile() (Compiled, error) {
	data, err := c.read(c.File)
	hash := hashOf(data)
	if errors.Is(err, fs.ErrNotExist) && !c.Required {
		data, hash, err = fmt.Appendf(nil, "apiVersion: %s\nkind: %s\n", APIVersion, Kind), "", nil
	}
	var p policy.Policy
	if err == nil {
		p, err = c.compile(data)
	}
	if err != nil {
		return Compiled{}, fmt.Errorf("configuration %s: %w", c.File, err)
	}
	p.CompiledFrom.ConfigSHA256, p.CompiledFrom.Flags = hash, c.Flags
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

// compile compiles the text of config.yaml and the flags.
func (c Compiler) compile(data []byte) (policy.Policy, error) {
	document, err := parse(data)
	if err != nil {
		return policy.Policy{}, err
	}
	merge(document, c.Flags)
	if err := validate(document, configSchema); err != nil {
		return policy.Policy{}, err
	}
	p, err := policyOf(document, c.NodeOS)
	return p, cmp.Or(err, c.check(p))
}

// ReadInventory returns the devices of an inventory file, and its hash.
func (c Compiler) ReadInventory(path string) (devices []discovery.Device, hash string, err error) {
	data, err := c.read(path)
	if err == nil {
		devices, err = ParseInventory(data)
	}
	if err != nil {
		return nil, "", fmt.Errorf("inventory %s: %w", path, err)
	}
	return devices, hashOf(data), nil
}

// Apply compiles the configuration and writes the result to the state directory, unless the files there
// are the same. The policy never refers to a compiled inventory that does not exist. Apply replaces a
// policy that cannot be read, because the sources have its whole content.
func (c Compiler) Apply() (Compiled, error) {
	compiled, err := c.Compile()
	inventory := node.CompiledInventory(c.StateDir)
	if err == nil && compiled.Policy.UseInventory {
		err = inventory.Write(compiled.Devices)
	}
	if err == nil {
		err = policy.Write(c.StateDir, compiled.Policy)
	}
	if err == nil && !compiled.Policy.UseInventory {
		err = inventory.Remove()
	}
	return compiled, err
}

// CheckSources returns an error if p, the policy in force, does not have the content of the files that it
// was compiled from, or if [Compiler.Compile] refuses them. It checks nothing if their directory does not
// exist here, such as a ConfigMap's in a pod.
func (c Compiler) CheckSources(p policy.Policy) error {
	from := p.CompiledFrom
	c.File, c.Flags = cmp.Or(from.Config, c.File), from.Flags
	compiled, err := c.Compile()
	now := compiled.Policy.CompiledFrom
	switch {
	case !durable.Exists(filepath.Dir(c.File)):
		return nil
	case err == nil && (now.ConfigSHA256 != from.ConfigSHA256 || now.InventorySHA256 != from.InventorySHA256):
		return fmt.Errorf("%s or the inventory has changed since the policy in force was compiled", c.File)
	}
	return err
}

// read reads a regular file (opening a named pipe would block) and checks who can write it, unless
// it is only inspected.
func (c Compiler) read(path string) ([]byte, error) {
	if path == "-" && c.Stdin != nil {
		return c.Stdin, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := durable.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // It was only read.
	if !c.InspectOnly {
		if err := checkVolume(f, filepath.Dir(paths.Default().Config)); err != nil {
			return nil, err
		}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if len(data) > maxSize {
		return nil, fmt.Errorf("larger than %d bytes", maxSize)
	}
	return data, err
}

// hashOf returns the hash of a file's content as [policy.CompiledFrom] has it.
func hashOf(data []byte) string { return fmt.Sprintf("%x", sha256.Sum256(data)) }
