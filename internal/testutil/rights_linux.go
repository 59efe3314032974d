package testutil

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// KeptOutByModes has modes of files keep the test out as they keep an ordinary
// user out, for root too: it takes the rights that pass modes over from the test's
// thread, which then ends with the test. What the test does on other goroutines is
// not kept out.
func KeptOutByModes(t testing.TB) {
	t.Helper()
	runtime.LockOSThread() // And no unlock: the thread is of no use to others.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var rights [2]unix.CapUserData
	if err := unix.Capget(&header, &rights[0]); err != nil {
		t.Fatalf("read the thread's rights: %v", err)
	}
	rights[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	if err := unix.Capset(&header, &rights[0]); err != nil {
		t.Fatalf("take rights from the thread: %v", err)
	}
}
