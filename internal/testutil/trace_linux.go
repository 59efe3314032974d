package testutil

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Trace runs a command until it exits. Before each of its system calls, it calls before with the
// count of calls so far and the number of the call in package syscall. Meanwhile, the other threads
// stop at their next calls. If before returns true, Trace kills the process. Trace does not trace a
// program that the process executes.
func Trace(command *exec.Cmd, before func(calls int, number uint64) (kill bool)) (syscall.WaitStatus, error) {
	runtime.LockOSThread() // which is the tracer
	defer runtime.UnlockOSThread()
	command.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Setpgid: true}
	if err := command.Start(); err != nil {
		return 0, err
	}
	pid := command.Process.Pid
	traced, killed, calls, inCall := false, false, 0, map[int]bool{}
	for {
		var status syscall.WaitStatus
		// Only children of this thread and of that process group: there may be others of both.
		tid, err := syscall.Wait4(-pid, &status, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return 0, fmt.Errorf("wait for %s: %w", command.Path, err)
		case status.Exited() || status.Signaled():
			if tid == pid {
				return status, nil
			}
			continue
		}
		deliver, resume := 0, syscall.PtraceSyscall
		signal := status.StopSignal()
		switch {
		case !traced:
			err = syscall.PtraceSetOptions(pid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|
				unix.PTRACE_O_TRACEEXEC|unix.PTRACE_O_EXITKILL)
			traced = true
		case signal == syscall.SIGTRAP|0x80:
			if inCall[tid] = !inCall[tid]; inCall[tid] && !killed {
				calls++
				var number uint64
				if number, err = callNumber(tid); err == nil {
					killed = before(calls, number)
				}
				if killed {
					err = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
		case signal == syscall.SIGTRAP && status.TrapCause() == unix.PTRACE_EVENT_EXEC:
			resume = func(pid, _ int) error { return syscall.PtraceDetach(pid) }
		case signal != syscall.SIGTRAP && signal != syscall.SIGSTOP:
			deliver = int(signal)
		}
		if err == nil && !killed {
			err = resume(tid, deliver)
		}
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			return 0, fmt.Errorf("trace %s: %w", command.Path, err)
		}
	}
}

// callNumber returns the number of the system call that a traced thread begins.
// https://man7.org/linux/man-pages/man2/ptrace.2.html
func callNumber(tid int) (uint64, error) {
	const getSyscallInfo = 0x420e
	info := struct { // ptrace_syscall_info
		op                                   uint8
		arch                                 uint32
		instructionPointer, stackPointer, nr uint64
		args                                 [6]uint64
	}{}
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, getSyscallInfo, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 && !errors.Is(errno, syscall.ESRCH) {
		return 0, errno
	}
	return info.nr, nil
}
