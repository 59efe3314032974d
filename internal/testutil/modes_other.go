//go:build !linux

package testutil

import "testing"

// EnforceModes skips the test: only Linux can enforce file modes.
func EnforceModes(t testing.TB) {
	t.Helper()
	t.Skip("file modes are enforced on Linux only")
}
