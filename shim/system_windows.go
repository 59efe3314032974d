package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// defaultRealShim is the file name of the real shim unless another one is configured.
const defaultRealShim = "containerd-shim-runhcs-v1.exe"

// root is unused: Windows has drives.
const root = ""

// exec runs the real shim at path and waits for it.
//
// containerd ends this process when a start takes too long. The real shim would continue
// and leave a half-started container behind, so it runs in a job object that ends
// with its last handle, which is ours. After a success the limit is removed.
// Everything that the real shim has started is in the job too, unless it starts host
// processes, which are job objects themselves.
// https://learn.microsoft.com/windows/win32/procthread/job-objects
func (s *shim) exec(path string) (int, error) {
	var stdin io.Reader = os.Stdin
	args := s.args
	if s.isStart() && isRunhcs(path) {
		given, err := io.ReadAll(os.Stdin)
		if err != nil {
			return 0, fmt.Errorf("directx-nri: read what containerd passes to %s: %w", path, err)
		}
		given, args = runhcsStart(given, args)
		stdin = bytes.NewReader(given)
	}
	command := ownGroup(exec.Command(path, args...))
	command.Stdin, command.Stdout, command.Stderr, command.Env = stdin, os.Stdout, os.Stderr, s.env
	var answer bytes.Buffer
	if hasSandbox(s.config) {
		command.Stdout = io.MultiWriter(os.Stdout, &answer)
	}
	// The container starts without a job object, too.
	breakaway := hasHostProcess(s.config)
	job, jobErr := newJob(breakaway)
	if jobErr == nil && !breakaway {
		// Children inherit the job, so that none of theirs escapes.
		jobErr = windows.AssignProcessToJobObject(job, windows.CurrentProcess())
	}
	if err := command.Start(); err != nil {
		return 0, fmt.Errorf("directx-nri: run %s: %w", path, errors.Join(err, release(job)))
	}
	if jobErr == nil && breakaway {
		err := command.Process.WithHandle(func(process uintptr) {
			jobErr = windows.AssignProcessToJobObject(job, windows.Handle(process))
		})
		jobErr = errors.Join(err, jobErr)
	}
	if jobErr != nil {
		s.log().WithError(jobErr).Warn("The real shim runs without a job object: it continues if containerd ends this start")
	}
	err := command.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		// The handle stays open until this process ends, which ends what is left of the
		// failed call.
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 0, fmt.Errorf("directx-nri: wait for %s: %w", path, err)
	}
	if err := release(job); err != nil {
		return 0, fmt.Errorf("directx-nri: the container ends with this process: %w", err)
	}
	if hasSandbox(s.config) {
		s.recordVersion(path, bootstrapVersion(answer.Bytes()))
	}
	return 0, nil
}

// ownGroup starts command in a process group of its own, in which Ctrl-C is ignored.
// Service managers such as nssm send Ctrl-C to all processes of containerd's console
// to stop containerd, and the real shim's process would end with its containers.
// https://learn.microsoft.com/windows/win32/procthread/process-creation-flags
func ownGroup(command *exec.Cmd) *exec.Cmd {
	command.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
	return command
}

// newJob returns a job object that ends its processes when its last handle is closed. With
// breakaway, the children of its processes are not in it.
func newJob(breakaway bool) (windows.Handle, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, fmt.Errorf("create job object: %w", err)
	}
	flags := uint32(windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE)
	if breakaway {
		flags |= windows.JOB_OBJECT_LIMIT_SILENT_BREAKAWAY_OK
	}
	if err := limit(job, flags); err != nil {
		return 0, errors.Join(err, windows.CloseHandle(job))
	}
	return job, nil
}

func limit(job windows.Handle, flags uint32) error {
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	info.BasicLimitInformation.LimitFlags = flags
	_, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation, uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	if err != nil {
		return fmt.Errorf("set limits of job object: %w", err)
	}
	return nil
}

// release lets the processes of job outlive this one.
func release(job windows.Handle) error {
	if job == 0 {
		return nil
	}
	return limit(job, 0)
}

// keepOwner does nothing: a file inherits owner and permissions from its directory.
func keepOwner(string, fs.FileInfo) error { return nil }
