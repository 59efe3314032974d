//go:build !linux

package main

import "testing"

// enforceModes skips the test: only Linux can enforce file modes.
func enforceModes(t testing.TB) {
	t.Helper()
	t.Skip("file modes are enforced on Linux only")
}
