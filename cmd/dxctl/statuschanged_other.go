//go:build !linux

package main

import "time"

// statusChanged is not known here.
func statusChanged(string) (at time.Time, ok bool) { return time.Time{}, false }
