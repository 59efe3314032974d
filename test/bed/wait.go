//go:build e2e && linux

package bed

import (
	"testing"
	"time"
)

// pollInterval is the time between two checks of a condition.
const pollInterval = 50 * time.Millisecond

// Eventually waits until check returns nil, and ends the test with its last
// error when that takes longer than timeout. It returns how long it took.
func Eventually(t testing.TB, timeout time.Duration, what string, check func() error) time.Duration {
	t.Helper()
	start := time.Now()
	for {
		err := check()
		took := time.Since(start)
		if err == nil {
			return took
		}
		if took > timeout {
			t.Fatalf("waited %v for this: %s. Last seen: %v", timeout, what, err)
		}
		time.Sleep(pollInterval)
	}
}

// Never calls check for the given time, and ends the test if it returns an error.
func Never(t testing.TB, during time.Duration, what string, check func() error) {
	t.Helper()
	for start := time.Now(); time.Since(start) < during; time.Sleep(pollInterval) {
		if err := check(); err != nil {
			t.Fatalf("this must not happen: %s. It did after %v: %v", what, time.Since(start).Round(time.Millisecond), err)
		}
	}
}
