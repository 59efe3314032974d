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
	"github.com/directx-nri/directx-nri/internal/localgrpc"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/service"
)

// Restarter restarts the containerd of a node, and restores its configuration if it does not
// start with it.
type Restarter struct {
	Instance
	StateDir string
	Restart  bool // containerd may be restarted
	dryRun   bool

	restartMode  string
	serviceName  string
	restartBy    string
	RestartLimit time.Duration
	// step is called at each step that dxctl can be killed at.
	step func(name string)
}

// Ways to restart containerd.
const (
	restartByService = "service"
	restartBySignal  = "signal"
	restartByTask    = "task"
)

func (t *Restarter) addDryRunFlag(command *cobra.Command) {
	command.Flags().BoolVar(&t.dryRun, "dry-run", false, "print the change as a unified diff, and change nothing")
}

// toLoad is what is left to do after a change without a restart.
const toLoad = "restart containerd, or reboot the node, to load the file"

// AddRestartFlags adds the flags of a command that changes the configuration.
func (t *Restarter) AddRestartFlags(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&t.StateDir, "state-dir", paths.Default().State, "state `DIRECTORY`")
	flags.BoolVar(&t.Restart, "restart", false, "restart containerd, and restore its configuration if it does not start")
	cli.AddChoice(command, &t.restartMode, "restart-mode", "", "how to restart it", restartByService, restartBySignal, restartByTask)
	flags.StringVar(&t.serviceName, "service", "containerd", "containerd's service in systemd or the Windows service manager")
	flags.StringVar(&t.restartBy, "restart-command", "", "shell command that restarts containerd, instead of --service")
	flags.DurationVar(&t.RestartLimit, "restart-timeout", time.Minute, "limit for containerd's restart")
}

// Check returns an error about flags that cannot be used.
func (t *Restarter) Check() error {
	if err := t.Instance.Check(); err != nil {
		return err
	}
	isOfOneOS := t.restartMode == restartBySignal || t.restartMode == restartByTask
	switch {
	case t.restartBy != "" && !t.Restart:
		return cli.Usage("--restart-command requires --restart")
	case isOfOneOS && (t.OS == "windows") != (t.restartMode == restartByTask):
		return cli.Usage("--restart-mode %s is not supported on %s", t.restartMode, t.OS)
	case isOfOneOS && t.restartBy != "":
		return cli.Usage("--restart-command excludes --restart-mode %s", t.restartMode)
	}
	return nil
}

// newPending returns the restart for a change of v to a new text.
func newPending(v version, changed savedFile) *pendingRestart {
	return &pendingRestart{Written: changed.fingerprint(), Before: &v}
}

// ready returns an error unless containerd has loaded the change.
func (p *pendingRestart) ready(loaded []containerdconfig.Handler) error {
	for _, name := range p.Handlers {
		isLoaded := func(h containerdconfig.Handler) bool { return h.Name == name && h.RuntimePath == p.Shim }
		if !slices.ContainsFunc(loaded, isLoaded) {
			return fmt.Errorf("runtime handler %s is not loaded with runtime_path %q", name, p.Shim)
		}
	}
	return nil
}

// inPlace reports whether the configuration file has the change or, after a failure, may
// be restored already. It does neither if dxctl was killed before the file was written, or
// if others replaced the file since.
func (p *pendingRestart) inPlace() (bool, error) {
	if p.Before == nil {
		return true, nil
	}
	now, err := saveFile(p.Before.Path)
	found := now.fingerprint()
	return found == p.Written || p.Failed != "" && found == p.Before.fingerprint(), err
}

// save records the restart, nil when it is finished.
func (t *Restarter) save(p *pendingRestart) error {
	err := updateRecord(t.StateDir, func(r *record) { r.Restart = p })
	t.at("saved")
	return err
}

// RestartAfter makes a change that containerd finds when it starts, and restarts it. The
// restart is recorded before: until it has succeeded, the next command repeats it.
func (t *Restarter) RestartAfter(ctx context.Context, out io.Writer, change func() error) error {
	return t.apply(ctx, out, new(pendingRestart), change)
}

// apply is [Restarter.RestartAfter] with the restart, nil for none.
func (t *Restarter) apply(ctx context.Context, out io.Writer, restart *pendingRestart, change func() error) (err error) {
	if restart != nil {
		if t.restartBy == "" && t.restartMode != restartBySignal {
			if restart.Services, err = service.Dependents(t.serviceName); err != nil {
				return fmt.Errorf("%s was not changed: %w", t.ConfigFile, err)
			}
		}
		if err := t.save(restart); err != nil {
			return err
		}
	}
	if err := change(); err != nil {
		return err
	}
	if restart != nil {
		if err := t.restartOrRestore(ctx, out, restart); err != nil {
			return err
		}
	}
	return ForgetFailure(t.StateDir)
}

// at reports a step to a test.
func (t *Restarter) at(step string) {
	if t.step != nil {
		t.step(step)
	}
}

var errUnfinished = errors.New("an earlier command did not finish its restart of containerd")

// FinishPending finishes a restart that an earlier run of dxctl left unfinished. A dry run
// only returns the error of a run without --restart.
func (t *Restarter) FinishPending(ctx context.Context, out io.Writer) error {
	if err := t.waitForTask(ctx); err != nil {
		return err
	}
	r, err := readRecord(t.StateDir)
	if err != nil || r.Restart == nil {
		return err
	}
	p := r.Restart
	inPlace, err := p.inPlace()
	if err != nil {
		return err
	}
	isUnnecessary := !inPlace || p.Failed == "" && len(p.Handlers) > 0 && t.hasLoaded(ctx, t.RestartLimit, p.ready)
	switch {
	case isUnnecessary && t.dryRun:
		return nil
	case isUnnecessary:
		return t.save(nil)
	case !t.Restart || t.dryRun:
		return fmt.Errorf("%w: add --restart", errUnfinished)
	}
	if err := t.CheckRestart(ctx); err != nil {
		return fmt.Errorf("%w: %w", errUnfinished, err)
	}
	fmt.Fprintln(out, "finishing an earlier restart of containerd")
	return t.restartOrRestore(ctx, out, p)
}

// hasLoaded reports whether the running containerd is known to have loaded what ready
// accepts.
func (t *Restarter) hasLoaded(ctx context.Context, limit time.Duration, ready func([]containerdconfig.Handler) error) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	loaded, err := containerdconfig.Load(ctx, t.CRISocket)
	return err == nil && ready(loaded.Handlers) == nil
}

// restartOrRestore restarts containerd for p, whose record is written. If containerd does
// not come back, it restores the files and restarts again; the error describes both.
func (t *Restarter) restartOrRestore(ctx context.Context, out io.Writer, p *pendingRestart) error {
	if t.restartMode == restartByTask {
		return t.restartByTask(ctx, out, p)
	}
	return t.finish(ctx, out, p)
}

// finish is restartOrRestore by this process. It can be killed at any moment: each step is
// recorded before it is made, and can be repeated.
func (t *Restarter) finish(ctx context.Context, out io.Writer, p *pendingRestart) error {
	if p.Failed != "" {
		return t.restore(ctx, p, errors.New(p.Failed))
	}
	err := t.restartAndCheck(ctx, p.Services, p.ready)
	switch {
	case err == nil || p.Before == nil && status.Code(err) == codes.Unimplemented: // It answers, without its CRI plugin.
		fmt.Fprintln(out, "restarted containerd")
		return t.save(nil)
	case p.Before == nil: // There is nothing to restore: the next run tries again.
		return t.fail(p, err, p)
	}
	p.Failed = err.Error()
	if ctx.Err() != nil {
		p.Attempt = "" // The cause is not the file.
	}
	if saveErr := t.save(p); saveErr != nil {
		err = fmt.Errorf("%w; %w", err, saveErr)
	}
	return t.restore(ctx, p, err)
}

// restore restores the configuration file and restarts containerd. It returns cause with the
// result.
func (t *Restarter) restore(ctx context.Context, p *pendingRestart, cause error) error {
	canceled := ctx.Err() != nil
	// Even after a signal: a node without containerd is worse.
	ctx = context.WithoutCancel(ctx)
	err := t.write(*p.Before)
	if err == nil && p.Before.Change == nil {
		err = t.forget(*p.Before)
	}
	t.at("restored")
	if err != nil {
		return fmt.Errorf("%w; restore %s: %w", cause, t.ConfigFile, err)
	}
	// On Windows, a pod's process has 5 s to end. Another restart could be killed when
	// the kubelet is stopped, and nothing would run dxctl again: the next run does it.
	// https://github.com/microsoft/hcsshim/blob/v0.14.1/internal/jobcontainers/jobcontainer.go
	if canceled && t.OS == "windows" && t.hasLoaded(ctx, time.Second, anyHandlers) {
		return fmt.Errorf("%w; %s was restored; run the command again to restart containerd", cause, t.ConfigFile)
	}
	if err := t.restartAndCheck(ctx, p.Services, anyHandlers); err != nil {
		cause = fmt.Errorf("%w; %s was restored; %w", cause, t.ConfigFile, err)
	} else {
		cause = fmt.Errorf("%w; %s was restored, and containerd runs with it", cause, t.ConfigFile)
	}
	return t.fail(p, cause, nil)
}

// fail records that the attempt of p has failed and which restart is pending then, and
// returns the cause.
func (t *Restarter) fail(p *pendingRestart, cause error, next *pendingRestart) error {
	err := updateRecord(t.StateDir, func(r *record) {
		r.Restart = next
		if p.Attempt != "" {
			r.Failure = &failure{p.Attempt, time.Now(), cause.Error()}
		}
	})
	t.at("failed")
	if err != nil {
		return fmt.Errorf("%w; %w", cause, err)
	}
	return cause
}

// anyHandlers accepts what containerd has loaded.
func anyHandlers([]containerdconfig.Handler) error { return nil }

// service returns containerd's service. The restart starts also those of dependents that
// an earlier one left stopped.
func (t *Restarter) service(dependents ...string) service.Service {
	switch {
	case t.restartBy != "":
		return service.Command(t.restartBy)
	case t.restartMode == restartBySignal:
		return service.BySignal(t.CRISocket, programName)
	}
	return service.Named(t.serviceName, dependents...)
}

// CheckRestart returns an error if containerd cannot be restarted.
func (t *Restarter) CheckRestart(ctx context.Context) error {
	if t.restartMode == restartByTask {
		_, err := service.Dependents(t.serviceName)
		return err
	}
	return t.service().Check(ctx)
}

// restartAndCheck restarts containerd and waits until ready accepts its handlers.
func (t *Restarter) restartAndCheck(ctx context.Context, dependents []string, ready func([]containerdconfig.Handler) error) error {
	ctx, cancel := context.WithTimeout(ctx, t.RestartLimit)
	defer cancel()
	t.at("restart")
	if err := t.service(dependents...).Restart(ctx); err != nil {
		return err
	}
	t.at("restarted")
	for {
		loaded, err := containerdconfig.Load(ctx, t.CRISocket)
		if err == nil {
			err = ready(loaded.Handlers)
		}
		if err == nil {
			t.at("loaded")
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
			return fmt.Errorf("containerd was restarted by %s and has not loaded its configuration after %v: %w%s", t.service(), t.RestartLimit, err, hint)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// isOutdated reports whether the running containerd is known to have started before our
// last change of its file. Changes by others do not count.
func (t *Restarter) isOutdated(ctx context.Context, c *Change) bool {
	if c == nil {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	process, err := localgrpc.SocketOwner(ctx, t.CRISocket)
	if err != nil {
		return false
	}
	defer func() { _ = process.Close() }()
	// If systemd created the socket, systemd is the process.
	if is, err := process.Is(programName); err != nil || !is {
		return false
	}
	started, err := process.Started()
	// A time in the future was recorded before the clock was set back.
	return err == nil && c.At.After(started) && !c.At.After(time.Now())
}
