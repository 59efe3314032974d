//go:build e2e && linux

package bed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ShiftClock sets the machine's wall clock forward, or back if by is negative, and
// returns a function that sets it right by the monotonic clock. If the run ends before,
// its outer process does that.
func ShiftClock(by time.Duration) (restore func() error, err error) {
	wall, err := sinceMonotonic()
	if err == nil {
		err = os.WriteFile(clockFile(RunDir()), fmt.Append(nil, int64(wall)), 0o600)
	}
	if err == nil {
		err = setWall(wall + by)
	}
	return func() error { return restoreClock(RunDir()) }, err
}

// clockFile is a file of the run that exists while the clock is wrong. It has the
// difference of the right wall clock and the monotonic clock in nanoseconds.
func clockFile(dir string) string { return filepath.Join(dir, "clock") }

func restoreClock(dir string) error {
	data, err := os.ReadFile(clockFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var wall time.Duration
	if _, scanErr := fmt.Sscan(string(data), (*int64)(&wall)); err != nil || scanErr != nil {
		return fmt.Errorf("set the clock right: %w", errors.Join(err, scanErr))
	}
	return errors.Join(setWall(wall), os.Remove(clockFile(dir)))
}

// sinceMonotonic is the difference of the wall clock and the monotonic clock.
func sinceMonotonic() (time.Duration, error) {
	var wall, monotonic unix.Timespec
	err := errors.Join(unix.ClockGettime(unix.CLOCK_REALTIME, &wall), unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic))
	return time.Duration(wall.Nano() - monotonic.Nano()), err
}

func setWall(sinceMonotonic time.Duration) error {
	var monotonic unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic); err != nil {
		return err
	}
	wall := unix.NsecToTimespec(monotonic.Nano() + int64(sinceMonotonic))
	return unix.ClockSettime(unix.CLOCK_REALTIME, &wall)
}
