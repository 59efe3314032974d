//go:build e2e && linux

package bed

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// tookTooLong begins the evidence in the error of a command.
const tookTooLong = "the command has taken too long"

// evidence describes the processes of the prefix, for a command that has taken too long.
// It also makes containerd and runhcs log the stacks of their goroutines.
func (w *Wine) evidence() string {
	var b strings.Builder
	fmt.Fprintf(&b, "the processes of the prefix at %s:\n", time.Now().UTC().Format(time.TimeOnly))
	processes, _ := filepath.Glob("/proc/[0-9]*") // The pattern is well formed.
	for _, process := range processes {
		threads, _ := filepath.Glob(filepath.Join(process, "task", "*"))
		// The first thread has no command line if it has ended before the others.
		if len(threads) == 0 || !w.has(threads[len(threads)-1]) {
			continue
		}
		command := strings.ReplaceAll(content(threads[len(threads)-1], "cmdline"), "\x00", " ")
		if strings.HasPrefix(command, `C:\windows\`) {
			continue // It is one of Wine's services.
		}
		fmt.Fprintf(&b, "%s: %s\n", filepath.Base(process), command)
		for _, thread := range threads {
			fmt.Fprintf(&b, "\t%s %s: %s, system call %s\n", filepath.Base(thread), content(thread, "comm"), content(thread, "wchan"), content(thread, "syscall"))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	stacks := w.Command(ctx, filepath.Join(w.built, stacksExe))
	stacks.Cancel = nil
	out, err := w.output(stacks)
	fmt.Fprintf(&b, "%s%v\n", out, err)
	return b.String()
}

// content returns a file of a process or thread, without the newline.
func content(process, name string) string {
	data, _ := os.ReadFile(filepath.Join(process, name)) // An error means that it has ended.
	return strings.TrimSpace(string(data))
}

// has reports whether a process or thread, as a directory of /proc, belongs to the prefix.
func (w *Wine) has(process string) bool {
	return slices.Contains(strings.Split(content(process, "environ"), "\x00"), "WINEPREFIX="+w.prefix())
}
