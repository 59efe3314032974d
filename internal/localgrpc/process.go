package localgrpc

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Errors of [SocketOwner] and [Process.Signal].
var (
	// ErrNoListener is returned when no process listens on the socket.
	ErrNoListener = errors.New("no process listens")
	// ErrHidden is returned when the process is in another PID namespace.
	ErrHidden = errors.New("its process is in another PID namespace; in a pod set hostPID: true")
	// ErrExited is returned when the process has ended.
	ErrExited = errors.New("the process has ended")
)

// parseStart returns the start time of a process from the content of
// /proc/PID/stat, as the time since the machine booted. The kernel counts in
// hundredths of a second.
// https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
func parseStart(stat string) (time.Duration, error) {
	// The second field, the program's name in parentheses, may contain anything.
	const starttime = 22 - 3 // after the name
	i := strings.LastIndex(stat, ") ")
	fields := strings.Fields(stat[i+1:])
	if i < 0 || len(fields) <= starttime {
		return 0, fmt.Errorf("%q is not in the format of proc_pid_stat(5)", stat)
	}
	ticks, err := strconv.ParseInt(fields[starttime], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("start time: %w", err)
	}
	return time.Duration(ticks) * (time.Second / 100), nil
}
