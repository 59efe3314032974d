//go:build unix

package frontend

import (
	"os"
	"syscall"
)

func passedOn() []os.Signal {
	return []os.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP}
}

// passOn hands a signal on. A key's signal goes to all that a terminal runs in
// its foreground, so that the program has got it already.
func passOn(p *os.Process, s os.Signal, terminal bool) {
	if terminal && (s == syscall.SIGINT || s == syscall.SIGQUIT) {
		return
	}
	_ = p.Signal(s) // It has ended, or is of somebody else by now.
}

func exitStatus(state *os.ProcessState) int {
	const bySignal = 128
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return bySignal + int(w.Signal())
	}
	return state.ExitCode()
}
