package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spf13/cobra"

	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/service"
)

// Restarter restarts the containerd of a node, and undoes the changes of its configuration with
// which it does not start.
type Restarter struct {
	Instance
	StateDir     string
	AllowRestart bool
	dryRun       bool

	restartMode    string
	serviceName    string
	restartCommand string
	RestartTimeout time.Duration
}

// Ways to restart containerd.
const (
	restartByService = "service"
	restartBySignal  = "signal"
)

func (t *Restarter) addDryRunFlag(command *cobra.Command) {
	command.Flags().BoolVar(&t.dryRun, "dry-run", false, "print the change as a unified diff, and change nothing")
}

// restartNotice is printed after a change without a restart.
const restartNotice = "restart containerd, or reboot the node, to load the file"

// AddRestartFlags adds the flags of a command that changes the configuration.
func (t *Restarter) AddRestartFlags(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&t.StateDir, "state-dir", paths.Default().State, "state `DIRECTORY`")
	flags.BoolVar(&t.AllowRestart, "restart", false, "restart containerd if that is necessary")
	cli.AddChoice(command, &t.restartMode, "restart-mode", "", "how to restart it", restartByService, restartBySignal)
	flags.StringVar(&t.serviceName, "service", "containerd", "containerd's service in systemd or the Windows service manager")
	flags.StringVar(&t.restartCommand, "restart-command", "", "shell command that restarts containerd, instead of --service")
	flags.DurationVar(&t.RestartTimeout, "restart-timeout", time.Minute, "limit for containerd's restart")
}

// Check returns an error about flags that cannot be used.
func (t *Restarter) Check() error {
	if err := t.Instance.Check(); err != nil {
		return err
	}
	switch {
	case t.restartCommand != "" && !t.AllowRestart:
		return cli.Usage("--restart-command requires --restart")
	case t.restartMode == restartBySignal && t.OS == "windows":
		return cli.Usage("--restart-mode %s is not supported on %s", t.restartMode, t.OS)
	case t.restartMode == restartBySignal && t.restartCommand != "":
		return cli.Usage("--restart-command excludes --restart-mode %s", t.restartMode)
	}
	return nil
}

// handlersCheck returns an error unless the handlers are those that containerd has to load.
type handlersCheck func(loaded []containerdconfig.Handler) error

// anyHandlers accepts what containerd has loaded.
func anyHandlers([]containerdconfig.Handler) error { return nil }

// withShim returns a check that the named handlers use the shim.
func withShim(names []string, shim string) handlersCheck {
	return func(loaded []containerdconfig.Handler) error {
		for _, name := range names {
			isLoaded := func(h containerdconfig.Handler) bool { return h.Name == name && h.RuntimePath == shim }
			if !slices.ContainsFunc(loaded, isLoaded) {
				return fmt.Errorf("runtime handler %s is not loaded with runtime_path %q", name, shim)
			}
		}
		return nil
	}
}

// asInFile returns a check that the handlers of a file that use the shim are loaded as they are
// there. Without one, it is unknown whether the file is loaded.
func asInFile(text []byte, target containerdconfig.Target) handlersCheck {
	return func(loaded []containerdconfig.Handler) error {
		f, err := containerdconfig.Read(text, target)
		if err != nil {
			return err
		}
		unknown := errors.New("no runtime handler of the file uses the shim")
		for _, h := range f.Handlers {
			if !h.Ours() {
				continue
			}
			unknown = nil
			isSame := func(l containerdconfig.Handler) bool {
				return l.Name == h.Name && l.RuntimePath == h.RuntimePath &&
					slices.Equal(l.PodAnnotations, h.PodAnnotations) && slices.Equal(l.ContainerAnnotations, h.ContainerAnnotations)
			}
			if !slices.ContainsFunc(loaded, isSame) {
				return fmt.Errorf("runtime handler %s is not loaded as it is in the file", h.Name)
			}
		}
		return unknown
	}
}

// hasLoaded reports whether the running containerd is known to have loaded what check accepts.
func (t *Restarter) hasLoaded(ctx context.Context, timeout time.Duration, check handlersCheck) bool {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	running, err := containerdconfig.Load(ctx, t.CRISocket)
	return err == nil && check(running.Handlers) == nil
}

var errRestartDue = errors.New("an earlier command did not finish its restart of containerd")

// RestartDue reports whether an earlier command did not finish a restart. Without --restart,
// that is an error.
func (t *Restarter) RestartDue() (due bool, err error) {
	r, err := readRecord(t.StateDir)
	if err == nil && r.RestartDue && !t.AllowRestart {
		err = fmt.Errorf("%w: add --restart", errRestartDue)
	}
	return r.RestartDue, err
}

// RestartAfter makes a change that containerd finds when it starts, and restarts it. Until the
// restart has succeeded, it is due, and the next command repeats it. change reports whether it has
// changed anything, also with an error.
func (t *Restarter) RestartAfter(ctx context.Context, out io.Writer, change func() (changed bool, err error)) error {
	r, err := readRecord(t.StateDir)
	if err != nil {
		return err
	}
	wasDue := r.RestartDue
	r.RestartDue = true
	if err := r.save(t.StateDir); err != nil {
		return err
	}
	if changed, err := change(); err != nil {
		r.RestartDue = wasDue || changed
		return errors.Join(err, r.save(t.StateDir))
	}
	err = t.restartAndCheck(ctx, anyHandlers)
	if err != nil && status.Code(err) != codes.Unimplemented { // It answers, without its CRI plugin.
		return fmt.Errorf("%w; run the command again to restart containerd", err)
	}
	fmt.Fprintln(out, "restarted containerd")
	r.RestartDue, r.Failure = false, nil
	return r.save(t.StateDir)
}

// restartOrUndo restarts containerd for a change that is written. If containerd does not load what
// check accepts, restartOrUndo undoes the pending edits and restarts containerd again; the error
// describes both. attempt identifies the change: see [failure].
func (t *Restarter) restartOrUndo(ctx context.Context, out io.Writer, c recordedConfig, attempt string, check handlersCheck) error {
	cause := t.restartAndCheck(ctx, check)
	if cause == nil {
		fmt.Fprintln(out, "restarted containerd")
		c.Pending, c.RestartDue, c.Failure = 0, false, nil
		return c.save(t.StateDir)
	}
	canceled := ctx.Err() != nil
	// Even after a signal: a node without containerd is worse.
	ctx = context.WithoutCancel(ctx)
	if c.Pending > 0 {
		if err := t.undoPending(&c); err != nil {
			cause = fmt.Errorf("%w; %s was not restored: %w", cause, c.path, err)
		} else {
			cause = fmt.Errorf("%w; %s was restored", cause, c.path)
		}
		// On Windows, a pod's process has 5 s to end. Another restart could be killed when
		// the kubelet is stopped, and nothing would run dxctl again: the next run does it.
		// https://github.com/microsoft/hcsshim/blob/v0.14.1/internal/jobcontainers/jobcontainer.go
		if canceled && t.OS == "windows" && t.hasLoaded(ctx, time.Second, anyHandlers) {
			return fmt.Errorf("%w; run the command again to restart containerd", cause)
		}
		if err := t.restartAndCheck(ctx, anyHandlers); err != nil {
			cause = fmt.Errorf("%w; %w", cause, err)
		} else {
			cause, c.RestartDue = fmt.Errorf("%w, and containerd runs with it", cause), c.Pending > 0
		}
	}
	// The failure is recorded last: a run that is killed before must be continued at once.
	if !canceled { // Otherwise, the cause is not the file.
		c.Failure = &failure{attempt, time.Now(), cause.Error()}
	}
	if err := c.save(t.StateDir); err != nil {
		return fmt.Errorf("%w; %w", cause, err)
	}
	return cause
}

// undoPending undoes the edits with which containerd has not started. Others may have changed
// the file since it was read.
func (t *Restarter) undoPending(c *recordedConfig) (err error) {
	if c.configFile, err = readConfigFile(c.path); err != nil {
		return err
	}
	loaded := len(c.Edits) - c.Pending
	text, _, err := containerdconfig.Undo(c.text, c.Edits[loaded:])
	if err == nil {
		err = c.restore(text)
	}
	if err != nil {
		return err
	}
	c.dropEdits(loaded)
	return c.save(t.StateDir)
}

// service returns containerd's service.
func (t *Restarter) service() service.Service {
	switch {
	case t.restartCommand != "":
		return service.Command(t.restartCommand)
	case t.restartMode == restartBySignal:
		return service.BySignal(t.CRISocket, programName)
	}
	return service.Named(t.serviceName)
}

// CheckRestart returns an error if containerd cannot be restarted.
func (t *Restarter) CheckRestart(ctx context.Context) error { return t.service().Check(ctx) }

// restartAndCheck restarts containerd and waits until it has loaded what check accepts.
func (t *Restarter) restartAndCheck(ctx context.Context, check handlersCheck) error {
	ctx, cancel := context.WithTimeout(ctx, t.RestartTimeout)
	defer cancel()
	if err := t.service().Restart(ctx); err != nil {
		return err
	}
	for {
		running, err := containerdconfig.Load(ctx, t.CRISocket)
		if err == nil {
			err = check(running.Handlers)
		}
		if err == nil {
			return nil
		}
		if status.Code(err) == codes.Unimplemented { // That will not change.
			return fmt.Errorf("containerd restarted without its CRI plugin: %w", err)
		}
		select {
		case <-ctx.Done():
			hint := ""
			if t.restartMode == restartBySignal && status.Code(err) == codes.Unavailable {
				hint = "; if no supervisor starts containerd again, start it, and do not use --restart-mode " + restartBySignal
			}
			return fmt.Errorf("containerd was restarted by %s, but has not loaded its configuration within %v: %w%s", t.service(), t.RestartTimeout, err, hint)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
