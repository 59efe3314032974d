// Package policy has the node policy: the validated configuration, with its defaults set, that the
// node's programs act on.
//
// One program, directx-advertiser or 'dxctl config apply', compiles config.yaml (package config)
// and calls [Write]. The runtime shim and the NRI plugin call [Read] at each decision for a
// container that requests a GPU. This package does not parse YAML, watch files or keep earlier
// policies.
//
// Programs that act on the policy treat a file that cannot be read as an error. The compiler may
// replace it, because everything in it comes from config.yaml.
package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/sirupsen/logrus"

	"github.com/directx-nri/directx-nri/internal/access"
	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/pci"
)

const (
	// format is the version of the file's format. It changes if older programs must not ignore what
	// newer programs write.
	format = 3
	// maxSize is the maximum size in bytes. No configuration compiles to more.
	maxSize = 4 << 20
)

// Policy is the node policy.
type Policy struct {
	// CompiledFrom identifies the files that the policy was compiled from.
	CompiledFrom CompiledFrom `json:"compiledFrom,omitzero"`
	// UseInventory reports whether the GPUs are those of the compiled inventory in the state
	// directory. Otherwise, they are discovered.
	UseInventory bool `json:"useInventory,omitempty"`

	// Resources are the rules that assign GPUs to extended resources, in order: a GPU belongs to
	// the first rule that matches it, and is not offered if none does.
	Resources       []ResourceRule              `json:"resources"`
	Assignment      Assignment                  `json:"assignmentMode"`
	DriverFiles     DriverFiles                 `json:"driverFiles"`
	Injection       Injection                   `json:"injection"`
	VisibilityHints bool                        `json:"visibilityHints"`
	ExtraMounts     ExtraMounts                 `json:"extraMounts"`
	Standalone      Standalone                  `json:"standalone"`
	RuntimeFiles    map[pci.Vendor]RuntimeFiles `json:"runtimeFiles,omitempty"`
	FailOnInitError bool                        `json:"failOnInitError"`
	Log             Log                         `json:"log"`
	Metrics         Metrics                     `json:"metrics,omitzero"`
}

// Standalone is the configuration of containers outside Kubernetes.
type Standalone struct {
	// Environment lets environment variables of containers request GPUs.
	Environment bool `json:"environment"`
}

// Metrics is the configuration of the advertiser's metrics and health endpoints.
type Metrics struct {
	Address string `json:"address,omitempty"`
}

// CompiledFrom identifies what a policy was compiled from. The hashes are SHA-256 in
// hexadecimal. A hash is "" if the file did not exist. A path is "" for the default policy, or if
// there is no inventory.
type CompiledFrom struct {
	Config          string `json:"config,omitempty"`
	ConfigSHA256    string `json:"configSHA256,omitempty"`
	Inventory       string `json:"inventory,omitempty"`
	InventorySHA256 string `json:"inventorySHA256,omitempty"`
	// Flags are the keys of config.yaml that command-line flags set.
	Flags map[string]any `json:"flags,omitempty"`
}

// Resolved is a policy with modes that this machine supports in place of auto: see package modes.
type Resolved struct{ Policy }

// Log is the configuration of the logs.
type Log struct {
	Level  string `json:"level"`
	Format string `json:"format"`
}

// Configure sets the level and the format of log. It can be called while the log is in use.
func (l Log) Configure(log *logrus.Logger) {
	if level, err := logrus.ParseLevel(l.Level); err == nil {
		log.SetLevel(level)
	}
	if l.Format == "json" {
		log.SetFormatter(&logrus.JSONFormatter{})
	} else {
		log.SetFormatter(&logrus.TextFormatter{FullTimestamp: true, DisableColors: true})
	}
}

// Default returns the policy of a node without config.yaml.
func Default() Policy {
	rule := func(name, kind string) ResourceRule {
		return ResourceRule{Name: name, Match: Match{Kind: kind}, Replicas: 1, AllocationPolicy: Distributed, MixedDrivers: RefuseMixed}
	}
	return Policy{
		Resources:  []ResourceRule{rule("directx.microsoft.com/display", "display"), rule("directx.microsoft.com/compute", "compute")},
		Assignment: AssignAuto, DriverFiles: FilesAuto, Injection: InjectAuto,
		ExtraMounts: ExtraMounts{Sources: MountSourcesDriverStore, Max: 16}, VisibilityHints: true,
		Log: Log{Level: "info", Format: "text"},
	}
}

// Path returns the path of policy.json in the state directory.
func Path(stateDir string) string { return filepath.Join(stateDir, paths.PolicyFile) }

// policyFile is the content of policy.json.
type policyFile struct {
	Format int `json:"format"`
	Policy
}

// Read returns the policy in the state directory, or [Default] if none was ever written. It returns
// an error if the file is damaged, has another format, or is lost. A missing file is lost if the
// directory of allocations exists. The error matches [access.ErrUntrusted] if other users can write to the
// directory.
func Read(stateDir string) (Policy, error) {
	var data []byte
	err := access.CheckPrivate(stateDir)
	if err == nil {
		data, err = durable.Read(Path(stateDir), maxSize)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) && !durable.Exists(paths.Allocations(stateDir)):
		return Default(), nil
	case errors.Is(err, fs.ErrNotExist):
		return Policy{}, errlog.WithRemedy(fmt.Errorf("read node policy: %w", err), errlog.Rewrite)
	case err != nil:
		return Policy{}, fmt.Errorf("read node policy: %w", err)
	}
	p, err := decode(data)
	if err != nil {
		return Policy{}, errlog.WithRemedy(fmt.Errorf("read node policy %s: %w", Path(stateDir), err), errlog.Rewrite)
	}
	return p, nil
}

// decode refuses what [Write] has not written. The compiler has checked all values.
func decode(data []byte) (Policy, error) {
	var f policyFile
	if err := json.Unmarshal(data, &f); err != nil {
		return Policy{}, err
	}
	if f.Format != format || len(f.Resources) == 0 {
		return Policy{}, fmt.Errorf("format %d with %d resources, want format %d", f.Format, len(f.Resources), format)
	}
	return f.Policy, nil
}

// Write writes p to the state directory, which it creates if necessary. It replaces the file
// atomically and syncs it, unless it has the same content already.
func Write(stateDir string, p Policy) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("write node policy: %w", err)
		}
	}()
	data, err := json.MarshalIndent(policyFile{format, p}, "", "  ")
	if err != nil {
		return err
	}
	if err := access.MakePrivate(stateDir); err != nil {
		return err
	}
	return durable.Update(Path(stateDir), append(data, '\n'), 0o600)
}
