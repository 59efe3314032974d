package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// exec runs the real shim at path and waits for it.
//
// containerd ends this process when a start takes too long. The real shim would continue and leave
// a half-started container behind. So it runs in a job object, whose processes end when its last
// handle is closed. This process has the only handle, and removes that limit after a success.
// Everything that the real shim has started is in the job, too, except host processes, which have
// job objects of their own.
// https://learn.microsoft.com/windows/win32/procthread/job-objects
func (s *shim) exec(path string) (int, error) {
	command := inOwnGroup(exec.Command(path, s.args...))
	command.Stdin, command.Stdout, command.Stderr, command.Env = os.Stdin, os.Stdout, os.Stderr, s.env
	var output bytes.Buffer
	if isSandbox(s.config) {
		command.Stdout = io.MultiWriter(os.Stdout, &output)
	}
	// If the job object fails, the container starts without one.
	breakaway := isHostProcess(s.config)
	job, jobErr := newJob(breakaway)
	if jobErr == nil && !breakaway {
		// Children inherit the job, so all descendants are in it.
		jobErr = windows.AssignProcessToJobObject(job, windows.CurrentProcess())
	}
	if err := command.Start(); err != nil {
		return 0, fmt.Errorf("run %s: %w", path, errors.Join(err, releaseJob(job)))
	}
	if jobErr == nil && breakaway { // What the real shim has started by now is not in the job.
		err := command.Process.WithHandle(func(process uintptr) {
			jobErr = windows.AssignProcessToJobObject(job, windows.Handle(process))
		})
		jobErr = errors.Join(err, jobErr)
	}
	if jobErr != nil {
		s.logger.WithError(jobErr).Warn("The real shim runs without a job object: it continues if containerd ends this start")
	}
	err := command.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		// The handle stays open until this process ends, which ends what is left of the
		// failed call.
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 0, fmt.Errorf("wait for %s: %w", path, err)
	}
	if err := releaseJob(job); err != nil {
		return 0, fmt.Errorf("the container would end with the runtime shim: %w", err)
	}
	if isSandbox(s.config) {
		s.recordBypass(path, bootstrapVersion(output.Bytes()))
	}
	return 0, nil
}

// inOwnGroup makes command start in a process group of its own, in which Ctrl-C is ignored.
// Service managers such as nssm send Ctrl-C to all processes of containerd's console
// to stop containerd, and the real shim's process would end with its containers.
// https://learn.microsoft.com/windows/win32/procthread/process-creation-flags
func inOwnGroup(command *exec.Cmd) *exec.Cmd {
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
	if err := setLimits(job, flags); err != nil {
		return 0, errors.Join(err, windows.CloseHandle(job))
	}
	return job, nil
}

func setLimits(job windows.Handle, flags uint32) error {
	var info windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION
	info.BasicLimitInformation.LimitFlags = flags
	_, err := windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&info)), uint32(unsafe.Sizeof(info)))
	if err != nil {
		return fmt.Errorf("set limits of job object: %w", err)
	}
	return nil
}

// releaseJob removes the limit of job, so that its processes continue when this one ends.
func releaseJob(job windows.Handle) error {
	if job == 0 {
		return nil
	}
	return setLimits(job, 0)
}
