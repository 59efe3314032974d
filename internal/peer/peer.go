// Package peer finds the process that listens on a Unix socket of this machine,
// on Linux.
package peer

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// What [Of] and [Process.Signal] find wrong.
var (
	// ErrNobody tells that no process listens on the socket.
	ErrNobody = errors.New("nobody listens")
	// ErrUnseen tells that the process is in a PID namespace that is not seen from
	// here.
	ErrUnseen = errors.New("its process is not seen from here; in a pod set hostPID: true")
	// ErrGone tells that the process has ended.
	ErrGone = errors.New("the process has ended")
)

// parseStart returns when a process was started, counted from the machine's boot,
// as /proc/PID/stat tells it in ticks of a hundredth of a second.
// https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
func parseStart(stat string) (time.Duration, error) {
	// The second field, the program's name, is in parentheses and may have
	// anything in it.
	_, rest, found := cutLast(stat, ") ")
	fields := strings.Fields(rest)
	const starttime = 22 - 3 // behind the name
	if !found || len(fields) <= starttime {
		return 0, fmt.Errorf("%q is not as proc_pid_stat(5) has it", stat)
	}
	ticks, err := strconv.ParseInt(fields[starttime], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("start time: %w", err)
	}
	return time.Duration(ticks) * (time.Second / 100), nil
}

func cutLast(s, separator string) (before, after string, found bool) {
	i := strings.LastIndex(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(separator):], true
}
