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
	"github.com/directx-nri/directx-nri/internal/policy"
)

// Apply compiles the configuration and installs the result, which it returns.
func (c Compiler) Apply() (policy.Policy, []discovery.Device, error) {
	p, devices, err := c.Compile()
	if err == nil {
		err = Install(c.StateDir, p, devices)
	}
	return p, devices, err
}

// Install writes what differs from the result of [Compiler.Compile] into the state directory.
// The policy never refers to a compiled inventory that does not exist. A policy that cannot be
// read is replaced: the files that it is compiled from have everything.
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

const (
	// pollInterval is the time between polls of the files. A file that is written in several
	// steps is compiled when two polls are equal.
	pollInterval = 250 * time.Millisecond
	// compileInterval is the longest time between compilations: files that were refused because
	// of something else, such as a missing program, are tried again, and what is lost in the
	// state directory is written again.
	compileInterval = 10 * time.Second
)

// Watch applies the configuration when config.yaml or the inventory has changed, and every ten
// seconds. It returns when the result differs from the policy in force in more than layout and
// comments, with the new policy and devices, so that the caller can restart with them; or with
// an error, the cause of ctx, when ctx ends. A configuration that cannot be applied changes
// nothing. report is called with the result of each attempt.
//
// Watch polls: that also works for files and directories that do not exist yet, and for
// Kubernetes volumes, which the kubelet changes through a symbolic link.
func (c Compiler) Watch(ctx context.Context, inForce policy.Policy, devices []discovery.Device, report func(error)) (policy.Policy, []discovery.Device, error) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	var polled, compiled string
	var compiledAt time.Time
	for ctx.Err() == nil {
		before := polled
		polled = c.fingerprint(inForce.Source.Inventory)
		if polled == before && (polled != compiled || time.Since(compiledAt) >= compileInterval) {
			compiled, compiledAt = polled, time.Now()
			next, nextDevices, err := c.Apply()
			report(err)
			if err == nil {
				inForce.Source = next.Source // with the hashes of files in another layout
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

// fingerprint returns a string that changes with the content of config.yaml and the inventory,
// and with the error of reading them. It does not compare modification times, which tools such
// as rsync keep.
func (c Compiler) fingerprint(inventory string) (text string) {
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
		data, err := Compiler{InspectOnly: true}.read(f.path, maxInventory)
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
