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

	"github.com/directx-nri/directx-nri/discovery/node"
	"github.com/directx-nri/directx-nri/internal/policy"
)

// Apply compiles the configuration and installs the result, which it returns.
func (c Compiler) Apply() (Compiled, error) {
	compiled, err := c.Compile()
	if err != nil {
		return compiled, err
	}
	return compiled, Install(c.StateDir, compiled)
}

// Install writes the result of [Compiler.Compile] to the state directory, unless the files there
// are the same. The policy never refers to a compiled inventory that does not exist. Install
// replaces a policy that cannot be read, because the sources have its whole content.
func Install(stateDir string, c Compiled) error {
	if c.Policy.UseInventory {
		if err := node.CompiledInventory(stateDir).Write(c.Devices); err != nil {
			return err
		}
	}
	if err := policy.Write(stateDir, c.Policy); err != nil {
		return err
	}
	if !c.Policy.UseInventory {
		return node.CompiledInventory(stateDir).Remove()
	}
	return nil
}

const (
	// pollInterval is the time between polls of the files. The files are compiled when two polls
	// are equal, because a program may write a file in several steps.
	pollInterval = 250 * time.Millisecond
	// compileInterval is the longest time between compilations of unchanged files. If they were
	// refused, the cause may be gone, such as a missing program. If they were installed, files in the
	// state directory may be lost.
	compileInterval = 10 * time.Second
)

// Watch applies the configuration when config.yaml or the inventory has changed, and every ten
// seconds. If the result differs from the one in force, Watch returns it, so that the caller can
// restart with it. When ctx ends, Watch returns the cause. A configuration that cannot be applied
// changes nothing. Watch calls report with the result of each attempt.
//
// Watch polls: that also works for files and directories that do not exist yet, and for Kubernetes
// volumes, which the kubelet changes through a symbolic link.
func (c Compiler) Watch(ctx context.Context, inForce Compiled, report func(error)) (Compiled, error) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	var polled, compiled string
	var compiledAt time.Time
	for ctx.Err() == nil {
		before := polled
		polled = c.fingerprint(inForce.Policy.CompiledFrom.Inventory)
		if polled == before && (polled != compiled || time.Since(compiledAt) >= compileInterval) {
			compiled, compiledAt = polled, time.Now()
			next, err := c.Apply()
			report(err)
			if err == nil {
				inForce.Policy.CompiledFrom = next.Policy.CompiledFrom // The hashes also change with comments.
				if !reflect.DeepEqual(next, inForce) {
					return next, nil
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	return Compiled{}, context.Cause(ctx)
}

// fingerprint returns a string that changes with the content of config.yaml and the inventory, and
// with the errors of reading them. It does not use modification times, because tools such as rsync
// preserve them.
func (c Compiler) fingerprint(inventory string) (text string) {
	for _, file := range []string{c.File, inventory} {
		data, err := c.read(file, maxInventory)
		text += fmt.Sprintf("%s %v\n", hashOf(data), err)
	}
	return text
}

// WhyStale returns a sentence for each source of p, the policy in force, that has changed since p was
// compiled. file is the default path of config.yaml. Sources whose directory does not exist here,
// such as a ConfigMap in a pod, are not compared.
func WhyStale(p policy.Policy, file string) []string {
	source := p.CompiledFrom
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
