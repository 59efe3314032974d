package testutil

import (
	"testing"
	"time"
)

// CheckLinear fails the test if run takes much longer with 10 times as much work: linear work takes about 10 times
// as long, and quadratic work 100 times. prepare returns what to run for a size. Of several runs the shortest counts,
// because others share the machine.
func CheckLinear(t testing.TB, size int, prepare func(size int) (run func())) {
	t.Helper()
	shortest := func(size int) time.Duration {
		run, best := prepare(size), time.Hour
		for range 7 {
			began := time.Now()
			run()
			best = min(best, time.Since(began))
		}
		return best
	}
	small, large := shortest(size), shortest(10*size)
	growth := float64(large) / float64(small)
	t.Logf("%s for %d, %s for %d: %.1f times as long", small, size, large, 10*size, growth)
	if growth > 40 {
		t.Errorf("10 times as much work takes %.0f times as long", growth)
	}
}
