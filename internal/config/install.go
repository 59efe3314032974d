package config

import (
	"context"
	"errors"
	"fmt"
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

// installedUnreadable reports whether the policy, or the inventory that it refers to, cannot be read.
func (c Compiler) installedUnreadable(ctx context.Context) bool {
	_, missing := os.Lstat(policy.Path(c.StateDir))
	p, err := policy.Read(c.StateDir)
	if err == nil && p.UseInventory {
		_, err = node.Inventory(c.StateDir).Devices(ctx)
	}
	return missing != nil || err != nil
}

// Install writes the result of [Compiler.Compile] into the state directory. The
// policy never refers to a compiled inventory that does not exist. A policy that
// cannot be read is replaced: the files that it is compiled from have everything.
func Install(stateDir string, p policy.Policy, devices []discovery.Device) error {
	if p.UseInventory {
		if err := node.Inventory(stateDir).Write(devices); err != nil {
			return err
		}
	}
	if err := policy.Write(stateDir, p); err != nil {
		return err
	}
	if !p.UseInventory {
		return node.Inventory(stateDir).Remove()
	}
	return nil
}

// pollInterval is the time between polls of the files. A file that is written in several
// steps is compiled when two polls are equal.
const pollInterval = 250 * time.Millisecond

// checkInterval is the time between checks of what is installed, and between attempts to
// compile files that were refused.
const checkInterval = 10 * time.Second

// Watch compiles the configuration again when config.yaml or the inventory has changed, and
// installs what differs from the policy in force, or was lost. It returns when that is more
// than a difference in layout or comments, with the new policy and devices, so that the
// caller can restart with them; or with an error, the cause of ctx, when ctx ends.
//
// A configuration that cannot be compiled or installed changes nothing. report is called
// with each different error, and with nil when the configuration is valid.
//
// Watch polls: that also works for files and directories that do not exist yet, and for
// Kubernetes volumes, which the kubelet changes through a symbolic link.
func (c Compiler) Watch(ctx context.Context, inForce policy.Policy, devices []discovery.Device, report func(error)) (policy.Policy, []discovery.Device, error) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	var refused errlog.Last
	var before, compiled string
	for checked := (time.Time{}); ctx.Err() == nil; {
		now := c.fingerprint(inForce.Source.Inventory)
		whole := now == before
		before = now
		if whole && (now != compiled || time.Since(checked) >= checkInterval) {
			checked = time.Now()
			next, nextDevices, err := inForce, devices, error(nil)
			if lost := c.installedUnreadable(ctx); now != compiled || refused != "" || lost {
				next, nextDevices, err = c.Compile()
				if err == nil && (lost || !reflect.DeepEqual(next, inForce)) {
					err = Install(c.StateDir, next, nextDevices)
				}
				compiled = now
			}
			if refused.Replace(err) || err == nil {
				report(err)
			}
			if err == nil {
				inForce.Source.Config, inForce.Source.ConfigSHA256, inForce.Source.InventorySHA256 = next.Source.Config, next.Source.ConfigSHA256, next.Source.InventorySHA256
				if !reflect.DeepEqual(next, inForce) || !reflect.DeepEqual(nextDevices, devices) {
					return next, nextDevices, nil
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	return policy.Policy{}, nil, context.Cause(ctx)
}

// fingerprint returns a text that differs if the content of config.yaml or the inventory
// does, or whether they can be read.
func (c Compiler) fingerprint(inventory string) string {
	text := ""
	for _, file := range []string{c.File, inventory} {
		data, err := c.read(file, maxInventory)
		text += fmt.Sprintf("%s %v\n", hashOf(data), err)
	}
	return text
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
		data, err := Compiler{Inspect: true}.read(f.path, maxInventory)
		_, dirErr := os.Stat(filepath.Dir(f.path))
		switch {
		case errors.Is(err, fs.ErrNotExist) && f.hash != "" && dirErr == nil:
			stale = append(stale, f.path+" no longer exists, and the policy in force was compiled from it")
		case err == nil && f.hash == "":
			stale = append(stale, f.path+" exists, and the policy in force was compiled without it")
		case err == nil && f.hash != hashOf(data):
			stale = append(stale, f.path+" has changed since the policy in force was compiled")
		}
	}
	return stale
}
