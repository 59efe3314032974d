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
	"strconv"
	"strings"
	"sync"

	"directx-nri/discovery"
	"directx-nri/discovery/compiled"
	"directx-nri/discovery/inventory"
	"directx-nri/internal/durable"
	"directx-nri/internal/filewatch"
	"directx-nri/internal/policy"
)

// Compiler reads config.yaml and the inventory, and makes the node policy of them.
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
}

// FlagError is a flag with an invalid value.
type FlagError = OverrideError

// Flags are the command-line flags for keys of config.yaml, which take precedence
// over the file. Add them to a command with [Flags.Add].
type Flags struct {
	set  FlagSet
	text map[string]*string
	fail bool
}

const failOnInitError = "fail-on-init-error"

// flagKeys are the keys that have a flag.
func flagKeys() []struct{ flag, key, usage string } {
	return []struct{ flag, key, usage string }{
		{"inventory", "inventory", "inventory `FILE` that describes this node's GPUs; \"\" discovers them, on Windows only"},
		{"preset", "preset", "`NAME` of a preset: resources as another device plugin offers them"},
		{"replicas", "replicas", "`NUMBER` of containers that can share a GPU, for rules that set no other"},
		{"injection", "injection", "how GPUs get into containers: runtime or kubelet"},
		{"served-by", "servedBy", "component that adds GPUs to containers if injection is runtime: nri or shim"},
		{"log-level", "log.level", "least severe messages to log: error, warn, info or debug"},
		{"log-format", "log.format", "log format: text or json"},
		{"metrics-address", "metrics.address", "`HOST:PORT` of the metrics and health endpoints; \"\" disables them"},
		{failOnInitError, "failOnInitError", "exit with an error if there is no GPU at the start, instead of waiting for one"},
	}
}

// FlagSet is the part of [github.com/spf13/pflag.FlagSet] that Flags needs.
type FlagSet interface {
	StringVar(p *string, name, value, usage string)
	BoolVar(p *bool, name string, value bool, usage string)
	Changed(name string) bool
}

// Add adds the flags to set. What they mean is checked by [Compiler.Compile].
func (f *Flags) Add(set FlagSet) {
	f.set, f.text = set, map[string]*string{}
	for _, k := range flagKeys() {
		usage := k.usage + " (config.yaml: " + k.key + ")"
		if k.flag == failOnInitError {
			set.BoolVar(&f.fail, k.flag, false, usage)
			continue
		}
		f.text[k.flag] = new(string)
		set.StringVar(f.text[k.flag], k.flag, "", usage)
	}
}

func (f Flags) overrides() ([]Override, error) {
	var list []Override
	for _, k := range flagKeys() {
		if f.set == nil || !f.set.Changed(k.flag) {
			continue
		}
		text := strconv.FormatBool(f.fail)
		if k.flag != failOnInitError {
			text = *f.text[k.flag]
		}
		if k.key == "inventory" && text != "" {
			abs, err := filepath.Abs(text)
			if err != nil {
				return nil, err
			}
			text = abs
		}
		list = append(list, Override{Origin: "--" + k.flag, Key: k.key, Value: text})
	}
	return list, nil
}

// Compile returns the policy and, if the configuration names an inventory, its
// devices. It writes nothing: see [Install]. Files that others than the system's
// administrators could have written are refused, except in a read-only volume. An
// invalid flag is a [FlagError].
func (c Compiler) Compile() (policy.Policy, []discovery.Device, error) {
	if c.Required {
		if _, err := os.Lstat(c.File); errors.Is(err, fs.ErrNotExist) {
			return policy.Policy{}, nil, fmt.Errorf("read configuration: %w", err)
		}
	}
	overrides, err := c.Flags.overrides()
	if err != nil {
		return policy.Policy{}, nil, err
	}
	overrides = append([]Override{{Origin: "state directory", Key: "stateDir", Value: c.StateDir}, {Origin: "node OS", Key: "containerOS", Value: c.NodeOS}}, overrides...)
	read, err := ReadVolume(c.File, overrides...)
	if err != nil {
		return policy.Policy{}, nil, err
	}
	p := read.policy()
	p.Source = policy.Source{Config: c.File, Inventory: read.Inventory}
	if data, err := durable.Read(c.File, maxSize); err == nil {
		p.Source.ConfigSHA256 = sum(data)
	}
	if read.Inventory == "" {
		return p, nil, nil
	}
	if err := checkVolume(read.Inventory); err != nil {
		return policy.Policy{}, nil, fmt.Errorf("read inventory: %w", err)
	}
	data, err := durable.Read(read.Inventory, 4<<20+1)
	if err != nil {
		return policy.Policy{}, nil, fmt.Errorf("read inventory: %w", err)
	}
	devices, err := inventory.Parse(read.Inventory, data)
	if err != nil {
		return policy.Policy{}, nil, fmt.Errorf("inventory: %w", err)
	}
	p.Inventory, p.Source.InventorySHA256 = true, sum(data)
	return p, devices, nil
}

func sum(data []byte) string {
	hash := sha256.Sum256(data)
	return hex.EncodeToString(hash[:])
}

// policy returns the policy of c.
func (c Config) policy() policy.Policy {
	p := policy.Policy{
		Assignment: policy.Assignment(c.Assignment), Injection: policy.Injection(c.Injection), ServedBy: policy.ServedBy(c.ServedBy),
		VisibilityHints: c.VisibilityHints, FailOnInitError: c.FailOnInitError, MetricsAddress: c.MetricsAddress,
		Shim: policy.Shim(c.Shim), Log: policy.Log(c.Log),
		ExtraMounts: policy.ExtraMounts{
			Sources: policy.MountSources(c.ExtraMounts.Sources), HostDirectories: c.ExtraMounts.HostFolders,
			Destinations: c.ExtraMounts.Destinations, Max: c.ExtraMounts.Max,
		},
	}
	if c.ExtraMounts.Sources == MountHostFolders {
		p.ExtraMounts.Sources = policy.MountHostDirectories
	}
	for _, r := range c.Resources {
		m := policy.Match{
			Kind: r.Match.Kind, Vendors: r.Match.Vendors, Descriptions: r.Match.Descriptions, LocationPaths: r.Match.LocationPaths,
			MinMemory: r.Match.MinMemory, MaxMemory: r.Match.MaxMemory, Integrated: r.Match.Integrated, Detachable: r.Match.Detachable,
			MinDriver: policy.DriverVersion(r.Match.MinDriver), MaxDriver: policy.DriverVersion(r.Match.MaxDriver),
		}
		p.Resources = append(p.Resources, policy.Resource{
			Name: r.Name, Match: m, Replicas: r.Replicas, Policy: policy.AllocationPolicy(r.Policy), MaxPerContainer: r.MaxPerContainer, MixedDrivers: r.MixedDrivers,
		})
	}
	for _, r := range c.RuntimeFiles {
		files := policy.RuntimeFiles{Vendor: r.Vendor, Remove: r.Remove}
		for _, a := range r.Add {
			files.Add = append(files.Add, policy.AddedFile{Source: a.Source, Directory: a.Folder, Destination: a.Destination})
		}
		p.RuntimeFiles = append(p.RuntimeFiles, files)
	}
	return p
}

// Install writes what [Compiler.Compile] returned into the state directory. The
// policy never refers to a compiled inventory that does not exist.
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
// have changed, and installs what differs from the policy in force. It returns
// when that is more than a difference in layout or comments, with the new policy
// and devices, so that the caller can restart with them; or with an error, the
// cause of ctx, when ctx ends.
//
// A configuration that cannot be compiled or installed changes nothing. report is
// called with each different error, and with nil when the configuration is valid.
func (c Compiler) Watch(ctx context.Context, inForce policy.Policy, devices []discovery.Device, report func(error)) (policy.Policy, []discovery.Device, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	looks := make(chan struct{}, 1)
	var watches sync.WaitGroup
	watch := func(path string) {
		watches.Go(func() {
			// On Windows our logs and records are in the same directory.
			concerns := func(name string) bool {
				base := filepath.Base(name)
				return strings.EqualFold(base, filepath.Base(path)) || base == filewatch.Data
			}
			filewatch.Run(ctx, filewatch.Options{Folder: filepath.Dir(path), Concerns: concerns, Timing: filewatch.Usual(), Look: func(bool) {
				select {
				case looks <- struct{}{}:
				default:
				}
			}})
		})
	}
	defer watches.Wait()
	defer cancel()
	watch(c.File)
	if inForce.Source.Inventory != "" {
		watch(inForce.Source.Inventory)
	}
	refused := ""
	for {
		select {
		case <-ctx.Done():
			return policy.Policy{}, nil, context.Cause(ctx)
		case <-looks:
		}
		next, nextDevices, err := c.Compile()
		changed := err == nil && !reflect.DeepEqual(next, inForce)
		if changed {
			err = Install(c.StateDir, next, nextDevices)
		}
		switch {
		case err != nil && err.Error() != refused:
			refused = err.Error()
			report(err)
		case err == nil:
			refused = ""
			report(nil)
		}
		if err != nil || !changed {
			continue
		}
		source := inForce.Source
		inForce.Source = next.Source
		if !reflect.DeepEqual(next, inForce) || next.Source.Inventory != source.Inventory || !reflect.DeepEqual(nextDevices, devices) {
			return next, nextDevices, nil
		}
	}
}
