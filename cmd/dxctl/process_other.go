//go:build !linux

package main

import (
	"context"
	"time"
)

// statusChanged is not supported.
func statusChanged(string) (at time.Time, ok bool) { return time.Time{}, false }

// containerdSearchPath is not supported: a named pipe does not reveal its server.
func containerdSearchPath(context.Context, string) []string { return nil }
