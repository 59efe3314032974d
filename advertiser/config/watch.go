package config

import (
	"context"
	"fmt"
	"reflect"
	"time"
)

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
		data, err := c.read(file)
		text += fmt.Sprintf("%s %v\n", hashOf(data), err)
	}
	return text
}
