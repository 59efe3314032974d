// Package config compiles config.yaml and the inventory file into the node policy.
//
//	apiVersion: directx.microsoft.com/v1alpha1
//	kind: Configuration
//	inventory: /etc/directx-nri/gpus.yaml
//	resources:
//	  - name: directx.microsoft.com/display
//	    match: {kind: display, vendor: nvidia}
//	    replicas: 4
//
// All keys but the first two are optional. Reading is strict: an unknown key or an
// invalid value is an error with the line and the path of the key. docs/configuration.md
// lists all keys.
//
// The files are compiled by one program on a node: directx-advertiser, at its start
// and when one of them changes, or 'dxctl config apply':
//
//	p, devices, err := compiler.Compile()
//	if err == nil {
//		err = config.Install(stateDir, p, devices)
//	}
//
// All programs act on the result, which package policy and package compiled read.
// If the files cannot be compiled, nothing is installed and the last policy stays in
// force.
//
// The configuration names a program that runs as the system, and directories that
// pods can read. So [Compiler.Compile] refuses config.yaml and the inventory if
// others than the system's administrators could have written them. It accepts a
// volume of Kubernetes, such as a ConfigMap: on Linux if it is mounted read-only, and
// not in the usual directory, on Windows if the system owns the file and its directory.
package config

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/compiled"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// The head of config.yaml.
const (
	APIVersion = "directx.microsoft.com/v1alpha1"
	Kind       = "Configuration"
)

const maxConfig = 1 << 20 // bytes

// Compiler compiles the configuration of a node.
type Compiler struct {
	// File is config.yaml. Unless Required, it need not exist: the defaults apply then.
	File     string
	Required bool
	// StateDir receives the policy. Pods cannot have extra mounts from it, nor from
	// OwnDirs, the other directories of this node's programs.
	StateDir string
	OwnDirs  []string
	// NodeOS is the operating system of the node's containers: "windows" or "linux".
	NodeOS string
	// Flags take precedence over the file.
	Flags Flags
	// CheckRuntime returns an error if containers could not start with the real shim of that
	// name (shim.runtime) in place of the last policy's. nil checks nothing.
	CheckRuntime func(stateDir, name string) error
	// Inspect compiles files that anyone may have written, without the inventory that
	// config.yaml names: it may be on another machine. The result is not for [Install].
	Inspect bool
}

// Flags are the command-line flags for keys of config.yaml, which take precedence
// over the file. Add them to a command with [Flags.Add].
type Flags struct{ set *pflag.FlagSet }

// FlagError is a flag with an invalid value.
type FlagError struct {
	Flag string // without dashes
	Err  error
}

// Error returns the flag and the cause.
func (e *FlagError) Error() string { return "--" + e.Flag + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *FlagError) Unwrap() error { return e.Err }

// flag is a flag for a key of config.yaml.
type flag struct{ name, key, usage string }

func flags() []flag {
	return []flag{
		{"inventory", "inventory", "inventory `FILE` that describes this node's GPUs; without one they are discovered: on Windows, and on Linux with /dev/dxg"},
		{"preset", "preset", "`NAME` of a preset: resources as another device plugin offers them"},
		{"replicas", "replicas", "`NUMBER` of containers that can share a GPU, for rules that set no other"},
		{"injection", "injection", "how GPUs get into containers: runtime or kubelet"},
		{"served-by", "servedBy", "component that adds GPUs to containers if injection is runtime: nri (default on Linux) or shim (default on Windows)"},
		{"log-level", "log.level", "least severe `LEVEL` to log: error, warn, info or debug"},
		{"log-format", "log.format", "log `FORMAT`: text or json"},
		{"metrics-address", "metrics.address", "`HOST:PORT` of the metrics and health endpoints; without one they are disabled"},
		{"fail-on-init-error", "failOnInitError", "exit with an error if there is no GPU at the start, instead of waiting for one"},
	}
}

// Add adds the flags to set. [Compiler.Compile] validates their values.
func (f *Flags) Add(set *pflag.FlagSet) {
	f.set = set
	defaults := defaultFile()
	for _, flag := range flags() {
		usage := flag.usage + " (key " + flag.key + ")"
		switch flag.key {
		case "replicas":
			set.Int(flag.name, defaults.Replicas, usage)
		case "failOnInitError":
			set.Bool(flag.name, false, usage)
		default:
			set.String(flag.name, map[string]string{"injection": defaults.Injection, "log.level": defaults.Log.Level, "log.format": defaults.Log.Format}[flag.key], usage)
		}
	}
}

// apply sets the keys of the document whose flags were given, and returns the flags'
// names by these keys.
func (f Flags) apply(d *document) (map[string]string, error) {
	given := map[string]string{}
	for _, flag := range flags() {
		if f.set == nil || d.root == nil || !f.set.Changed(flag.name) {
			continue
		}
		set := f.set.Lookup(flag.name).Value
		value := set.String()
		if flag.key == "inventory" && value != "" {
			var err error
			if value, err = filepath.Abs(value); err != nil {
				return nil, err
			}
		}
		tag := map[string]string{"int": "!!int", "bool": "!!bool", "string": "!!str"}[set.Type()]
		d.set(flag.key, &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value})
		given[flag.key] = flag.name
	}
	return given, nil
}

// Compile returns the policy and, if the configuration names an inventory, its
// devices. It writes nothing: see [Install]. An invalid flag is a [FlagError], errors
// in a file are [KeyErrors].
func (c Compiler) Compile() (policy.Policy, []discovery.Device, error) {
	p, err := c.configuration()
	if err != nil || p.Source.Inventory == "" || c.Inspect {
		return p, nil, err
	}
	devices, hash, err := c.inventory(p.Source.Inventory)
	p.Inventory, p.Source.InventorySHA256 = err == nil, hash
	return p, devices, err
}

// inventory returns the devices of an inventory file, and its hash.
func (c Compiler) inventory(path string) ([]discovery.Device, string, error) {
	data, err := c.read(path, maxInventory)
	if err != nil {
		return nil, "", fmt.Errorf("read inventory: %w", err)
	}
	devices, err := ParseInventory(path, data)
	if err != nil {
		return nil, "", fmt.Errorf("inventory: %w", err)
	}
	if c.NodeOS == "windows" {
		for i := range devices {
			devices[i].RequirePath()
		}
	}
	return devices, SHA256(data), nil
}

// configuration compiles config.yaml and the flags.
func (c Compiler) configuration() (p policy.Policy, err error) {
	data, err := c.read(c.File, maxConfig)
	hash := SHA256(data)
	if errors.Is(err, fs.ErrNotExist) && !c.Required {
		data, hash, err = fmt.Appendf(nil, "apiVersion: %s\nkind: %s\n", APIVersion, Kind), "", nil
	}
	if err != nil {
		return policy.Policy{}, fmt.Errorf("read configuration: %w", err)
	}
	d := parseDocument(c.File, data, maxConfig)
	given, err := c.Flags.apply(d)
	if err != nil {
		return policy.Policy{}, err
	}
	file := defaultFile()
	if d.decode("config.schema.json", &file); len(d.problems) == 0 {
		p = c.build(d, file)
	}
	for _, problem := range d.problems {
		if name, ok := given[problem.Path]; ok {
			return policy.Policy{}, &FlagError{name, errors.New(problem.Text)}
		}
	}
	if err := d.err(); err != nil {
		return policy.Policy{}, fmt.Errorf("configuration: %w", err)
	}
	p.Source.Config, p.Source.ConfigSHA256 = c.File, hash
	return p, nil
}

// CheckAccess returns an error if others can write the file at path, so that
// [Compiler.Compile] refuses it, or it cannot be read.
func CheckAccess(path string) error {
	_, err := Compiler{}.read(path, maxInventory)
	return err
}

// read reads a file and checks who can write it.
func (c Compiler) read(path string, limit int64) ([]byte, error) {
	return readRegular(path, limit, func(f *os.File) error {
		if c.Inspect {
			return nil
		}
		return checkVolume(f, filepath.Dir(paths.Default().Config))
	})
}

// unchanged reports whether the files are those of s. The memory that a compilation takes
// is a multiple of their size.
func (c Compiler) unchanged(s policy.Source) bool {
	data, err := c.read(c.File, maxConfig)
	same := err == nil && SHA256(data) == s.ConfigSHA256 || errors.Is(err, fs.ErrNotExist) && !c.Required && s.ConfigSHA256 == ""
	if same && s.Inventory != "" {
		data, err = c.read(s.Inventory, maxInventory)
		same = err == nil && SHA256(data) == s.InventorySHA256
	}
	return same && c.File == s.Config
}

// lost reports whether the policy, or the inventory that it refers to, cannot be read.
func (c Compiler) lost(ctx context.Context) bool {
	_, missing := os.Lstat(policy.Path(c.StateDir))
	p, err := policy.Read(c.StateDir)
	if err == nil && p.Inventory {
		_, err = compiled.Open(c.StateDir).Devices(ctx)
	}
	return missing != nil || err != nil
}

// SHA256 returns the hash of a file's content as [policy.Source] has it.
func SHA256(data []byte) string {
	hash := sha256.Sum256(data)
	return hex.EncodeToString(hash[:])
}

// Install writes the result of [Compiler.Compile] into the state directory. The
// policy never refers to a compiled inventory that does not exist. A policy that
// cannot be read is replaced: the files that it is compiled from have everything.
func Install(stateDir string, p policy.Policy, devices []discovery.Device) error {
	if p.Inventory {
		if err := compiled.Write(stateDir, devices); err != nil {
			return err
		}
	}
	if err := policy.Write(stateDir, p); err != nil {
		return err
	}
	if !p.Inventory {
		return compiled.Remove(stateDir)
	}
	return nil
}

// Watch compiles the configuration again when config.yaml or the inventory may
// have changed, and installs what differs from the policy in force, or was lost. It
// returns when that is more than a difference in layout or comments, with the new policy
// and devices, so that the caller can restart with them; or with an error, the
// cause of ctx, when ctx ends.
//
// A configuration that cannot be compiled or installed changes nothing. report is
// called with each different error, and with nil when the configuration is valid.
func (c Compiler) Watch(ctx context.Context, inForce policy.Policy, devices []discovery.Device, report func(error)) (policy.Policy, []discovery.Device, error) {
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	files := []string{c.File}
	if inForce.Source.Inventory != "" {
		files = append(files, inForce.Source.Inventory)
	}
	var refused errlog.Last
	restart := false
	watchFiles(watched, files, 10*time.Second, func() {
		lost := c.lost(ctx)
		if refused == "" && !lost && c.unchanged(inForce.Source) {
			report(nil)
			return
		}
		next, nextDevices, err := c.Compile()
		changed := err == nil && (lost || !reflect.DeepEqual(next, inForce))
		if changed {
			err = Install(c.StateDir, next, nextDevices)
		}
		if err != nil {
			if refused.Replace(err) {
				report(err)
			}
			return
		}
		refused.Replace(nil)
		report(nil)
		if !changed {
			return
		}
		hashes := next.Source
		hashes.Inventory = inForce.Source.Inventory
		inForce.Source = hashes
		restart = !reflect.DeepEqual(next, inForce) || !reflect.DeepEqual(nextDevices, devices)
		inForce, devices = next, nextDevices
		if restart {
			cancel()
		}
	})
	if !restart {
		return policy.Policy{}, nil, context.Cause(ctx)
	}
	return inForce, devices, nil
}

// Stale returns a sentence for each file that differs from what the policy in
// force, p, was compiled from. file is config.yaml at its usual place. Files of
// another mount namespace, such as a ConfigMap's, are not compared.
func Stale(p policy.Policy, file string) []string {
	source := p.Source
	if source.Config == "" {
		source.Config = file
	}
	var stale []string
	for _, f := range []struct{ path, hash string }{{source.Config, source.ConfigSHA256}, {source.Inventory, source.InventorySHA256}} {
		if f.path == "" {
			continue
		}
		data, err := readRegular(f.path, maxInventory, func(*os.File) error { return nil })
		_, dirErr := os.Stat(filepath.Dir(f.path))
		switch {
		case errors.Is(err, fs.ErrNotExist) && f.hash != "" && dirErr == nil:
			stale = append(stale, f.path+" no longer exists, and the policy in force was compiled from it")
		case err == nil && f.hash == "":
			stale = append(stale, f.path+" exists, and the policy in force was compiled without it")
		case err == nil && f.hash != SHA256(data):
			stale = append(stale, f.path+" has changed since the policy in force was compiled")
		}
	}
	return stale
}
