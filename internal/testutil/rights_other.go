//go:build !linux

package testutil

import "testing"

// KeptOutByModes skips the test, for which modes of files have to keep it out.
func KeptOutByModes(t testing.TB) {
	t.Helper()
	t.Skip("modes of files keep a test out on Linux only")
}
