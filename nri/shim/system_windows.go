package shim

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"unsafe"

	"golang.org/x/sys/windows"

	"directx-nri/nri/shim/bootstrap"
)

const (
	usualShim = "containerd-shim-runhcs-v1.exe"
	// root is not used: Windows has no one root.
	root = ""
)

// grouping says how the real shim's processes are held together while we wait
// for it.
type grouping int

const (
	// groupTightly ends the real shim and all that it has started when we are
	// ended.
	groupTightly grouping = iota
	// groupLoosely ends the real shim alone. What it starts is in no job of
	// ours, because host-process containers are made of jobs of their own.
	groupLoosely
)

// handOver runs the real shim at path and waits for it.
//
// containerd ends us when a start takes too long. The real shim would go on
// then and leave a half-started container to nobody, so it runs in a job that
// ends with the last handle to it, which is ours. When it has succeeded, the job
// is told to let its processes live.
// https://learn.microsoft.com/windows/win32/procthread/job-objects
func (s *shim) handOver(path string) (int, error) {
	command := exec.Command(path, s.call.Args...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	if s.starts() && bootstrap.ReadsOptions(path) {
		if given, err := io.ReadAll(os.Stdin); err == nil {
			command.Stdin = bytes.NewReader(bootstrap.Options(given))
		}
	}
	command.Env = s.call.Env
	// A job that cannot be had is no reason to fail a container.
	job, jobErr := newJob(s.group)
	if jobErr == nil && s.group == groupTightly {
		// Our children are born into it, so that none of theirs escapes.
		jobErr = windows.AssignProcessToJobObject(job, windows.CurrentProcess())
	}
	if err := command.Start(); err != nil {
		return 0, fmt.Errorf("directx-nri: run %s: %w", path, errors.Join(err, release(job)))
	}
	if jobErr == nil && s.group == groupLoosely {
		jobErr = assign(job, command.Process.Pid)
	}
	if jobErr != nil {
		s.log().WithError(jobErr).Warn("the real shim runs without a job: if containerd ends this start, it goes on")
	}
	err := command.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		// The handle stays open until we end, and with it ends what is left of
		// the failed call.
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 0, fmt.Errorf("directx-nri: wait for %s: %w", path, err)
	}
	if err := release(job); err != nil {
		s.log().WithError(err).Error("a container that has just started ends now: its job cannot be told to let it live")
	}
	return 0, nil
}

// newJob returns a job that ends its processes when the last handle to it is
// closed.
func newJob(group grouping) (windows.Handle, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, fmt.Errorf("make a job: %w", err)
	}
	flags := uint32(windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE)
	if group == groupLoosely {
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
		return fmt.Errorf("set a job's limits: %w", err)
	}
	return nil
}

func assign(job windows.Handle, pid int) error {
	process, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, uint32(pid))
	if err != nil {
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	return errors.Join(windows.AssignProcessToJobObject(job, process), windows.CloseHandle(process))
}

// release lets job's processes live on without us.
func release(job windows.Handle) error {
	if job == 0 {
		return nil
	}
	return limit(job, 0)
}

// keepOwner has nothing to do: a file's owner and rights come from its folder.
func keepOwner(string, fs.FileInfo) error { return nil }
