package config

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/directx-nri/directx-nri/discovery"
	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/errlog"
	"github.com/directx-nri/directx-nri/internal/policy"
)

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
		_, err = node.Inventory(c.StateDir).Devices(ctx)
	}
	return missing != nil || err != nil
}

// Install writes the result of [Compiler.Compile] into the state directory. The
// policy never refers to a compiled inventory that does not exist. A policy that
// cannot be read is replaced: the files that it is compiled from have everything.
func Install(stateDir string, p policy.Policy, devices []discovery.Device) error {
	if p.Inventory {
		if err := node.Inventory(stateDir).Write(devices); err != nil {
			return err
		}
	}
	if err := policy.Write(stateDir, p); err != nil {
		return err
	}
	if !p.Inventory {
		return node.Inventory(stateDir).Remove()
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
