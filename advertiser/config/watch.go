package config

import (
	"context"
	"fmt"
	"time"
)

const (
	// pollInterval is the time between polls of the files. A change counts when two polls are equal,
	// because a program may write a file in several steps.
	pollInterval = time.Second
	// compileInterval is the longest time between compilations of unchanged files. If they were
	// refused, the cause may be gone, such as a missing program. If they were installed, files in the
	// state directory may be lost.
	compileInterval = 10 * time.Second
)

// Wait waits until config.yaml or the inventory differs from seen, the result of an earlier call, or for
// ten seconds. It returns what it has seen, or the cause of ctx's end.
//
// It polls: that also works for files and directories that do not exist yet, and for Kubernetes
// volumes, which the kubelet changes through a symbolic link.
func (c Compiler) Wait(ctx context.Context, inventory, seen string) (string, error) {
	start, ticker := time.Now(), time.NewTicker(pollInterval)
	defer ticker.Stop()
	for polled := ""; ; {
		before := polled
		polled = c.fingerprint(inventory)
		if polled == before && (polled != seen || time.Since(start) >= compileInterval) {
			return polled, nil
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-ticker.C:
		}
	}
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
