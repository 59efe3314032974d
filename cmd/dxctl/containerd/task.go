package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/internal/durable"
	"github.com/directx-nri/directx-nri/internal/service"
)

// A scheduled task restarts a containerd whose stop can end this process: see
// [service.Named]. It runs a copy of dxctl, which finishes the pending restart.
const (
	taskName    = "directx-nri restart containerd"
	taskCommand = "finish-restart"

	// Files of the task in the state directory.
	taskProgram = "restart-task.exe"
	taskLog     = "restart-task.log"
	taskLock    = "restart-task.lock" // locked while the task runs

	// taskMargin is for the start of the task and its writes.
	taskMargin = time.Minute
	taskPoll   = 200 * time.Millisecond
)

// DeleteTask deletes the scheduled task.
func DeleteTask(ctx context.Context) error { return service.DeleteTask(ctx, taskName) }

// TaskFiles returns the files that the task leaves in the state directory.
func TaskFiles(state string) []string {
	return []string{filepath.Join(state, taskProgram), filepath.Join(state, taskLog), filepath.Join(state, taskLock)}
}

// taskLimit bounds the task: a restart, and one after the configuration is restored.
func (t *Restarter) taskLimit() time.Duration { return 2*t.RestartLimit + taskMargin }

// restartByTask starts the task for p and waits for its end. If the restart ends this
// process, the next run finds the result.
func (t *Restarter) restartByTask(ctx context.Context, out io.Writer, p *pendingRestart) error {
	if p.Attempt == "" {
		p.Attempt = taskCommand // So that the task records a failure.
		if err := t.save(p); err != nil {
			return err
		}
	}
	// A failure that is recorded afterward is the task's.
	if err := ForgetFailure(t.StateDir); err != nil {
		return err
	}
	program := filepath.Join(t.StateDir, taskProgram)
	if err := copySelf(program); err != nil {
		return err
	}
	err := service.RunTask(ctx, service.Task{
		Name: taskName, Program: program, Limit: t.taskLimit() + taskMargin, // The task ends itself before that.
		Args: []string{
			"runtime", taskCommand, "--state-dir", t.StateDir, "--containerd-config", t.ConfigFile, "--cri-socket", t.CRISocket,
			"--service", t.serviceName, "--restart-timeout", t.RestartLimit.String(), "--restart",
		},
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "the scheduled task %q restarts containerd; its log is %s\n", taskName, filepath.Join(t.StateDir, taskLog))
	for deadline := time.Now().Add(t.taskLimit()); ; {
		// A record that cannot be read may be one that the task is writing.
		if r, err := readRecord(t.StateDir); err == nil && r.Failure != nil {
			return errors.New(r.Failure.Cause)
		} else if err == nil && r.Restart == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the scheduled task %q has not finished after %v", taskName, t.taskLimit())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the scheduled task %q has not finished: %w", taskName, context.Cause(ctx))
		case <-time.After(taskPoll):
		}
	}
}

// copySelf copies this program to path, where it stays when the container ends.
func copySelf(path string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program, err := os.ReadFile(self)
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, program) {
		return nil // It may be running.
	}
	return durable.Replace(path, program, 0o700)
}

// waitForTask waits while the task runs.
func (t *Restarter) waitForTask(ctx context.Context) error {
	if !durable.Exists(filepath.Join(t.StateDir, taskLock)) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.taskLimit())
	defer cancel()
	lock := flock.New(filepath.Join(t.StateDir, taskLock))
	if _, err := lock.TryLockContext(ctx, taskPoll); err != nil {
		return fmt.Errorf("wait for the scheduled task %q: %w", taskName, err)
	}
	return lock.Close()
}

// NewFinishRestartCommand returns the hidden command that the task runs.
func NewFinishRestartCommand(goos string) *cobra.Command {
	t := Restarter{Instance: Instance{OS: goos}}
	command := &cobra.Command{
		Use:    taskCommand,
		Short:  "Finish a restart of containerd, for the scheduled task",
		Hidden: true,
		RunE:   func(c *cobra.Command, _ []string) error { return t.runTask(c.Context()) },
	}
	t.AddFlags(command.Flags())
	t.AddRestartFlags(command)
	return command
}

func (t *Restarter) runTask(ctx context.Context) (err error) {
	lock := flock.New(filepath.Join(t.StateDir, taskLock), flock.SetPermissions(0o600))
	if locked, err := lock.TryLock(); err != nil || !locked {
		return errors.Join(err, errors.New("another task runs"))
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	log, err := os.OpenFile(filepath.Join(t.StateDir, taskLog), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	say := func(text string) {
		_, _ = fmt.Fprintf(log, "%s %s\n", time.Now().UTC().Format(time.RFC3339), text) // The restart is more important.
	}
	t.step = say
	ctx, cancel := context.WithTimeout(ctx, t.taskLimit())
	defer cancel()
	defer func() {
		if err != nil {
			say(err.Error())
		}
		if deleteErr := service.DeleteTask(context.WithoutCancel(ctx), taskName); deleteErr != nil {
			say(deleteErr.Error())
		}
	}()
	r, err := readRecord(t.StateDir)
	if err != nil || r.Restart == nil {
		return err
	}
	if inPlace, err := r.Restart.inPlace(); err != nil || !inPlace {
		return errors.Join(err, t.save(nil))
	}
	return t.finish(ctx, log, r.Restart)
}
