package testutil

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// EnforceModes makes file modes apply to the test even if it runs as root: it drops
// the capabilities of the test's thread, which ends with the test. Other goroutines
// are not affected.
func EnforceModes(t testing.TB) {
	t.Helper()
	runtime.LockOSThread() // Never unlocked, so that the thread is not reused.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		t.Fatalf("read capabilities: %v", err)
	}
	sets[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	if err := unix.Capset(&header, &sets[0]); err != nil {
		t.Fatalf("drop capabilities: %v", err)
	}
}
