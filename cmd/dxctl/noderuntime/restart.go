package noderuntime

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/directx-nri/directx-nri/cmd/dxctl/containerd"
	"github.com/directx-nri/directx-nri/internal/cli"
	"github.com/directx-nri/directx-nri/internal/containerdconfig"
	"github.com/directx-nri/directx-nri/internal/criclient"
	"github.com/directx-nri/directx-nri/internal/paths"
	"github.com/directx-nri/directx-nri/internal/service"
)

type restarter struct {
	containerd.Instance
	stateDir                                 string
	allowRestart, dryRun, force              bool
	restartMode, serviceName, restartCommand string
	restartTimeout                           time.Duration
}

// Ways to restart containerd.
const (
	restartByService = "service"
	restartBySignal  = "signal"
)

func (r *restarter) addDryRunFlag(command *cobra.Command) {
	command.Flags().BoolVar(&r.dryRun, "dry-run", false, "print the change as a unified diff, and change nothing")
}

// restartNotice is printed after a change without a restart.
const restartNotice = "restart containerd, or reboot the node, to load the file"

// addRestartFlags adds the flags of all commands that restart containerd.
func (r *restarter) addRestartFlags(command *cobra.Command) {
	flags := command.Flags()
	r.AddFlags(flags)
	flags.StringVar(&r.stateDir, "state-dir", paths.Default().State, "state `DIRECTORY`")
	flags.BoolVar(&r.allowRestart, "restart", false, "restart containerd if that is necessary")
	cli.AddChoice(command, &r.restartMode, "restart-mode", "how to restart containerd", restartByService, restartBySignal)
	flags.StringVar(&r.serviceName, "service", "", "containerd's service in systemd or the Windows service manager (default: that of the running containerd)")
	flags.StringVar(&r.restartCommand, "restart-command", "", "shell command that restarts containerd, instead of --service")
	flags.DurationVar(&r.restartTimeout, "restart-timeout", time.Minute, "limit for containerd's restart")
}

// CheckFlags returns an error about flags that cannot be used.
func (r *restarter) CheckFlags() error {
	if err := r.Instance.CheckFlags(); err != nil {
		return err
	}
	switch {
	case r.dryRun && r.allowRestart:
		return cli.UsageError("--dry-run excludes --restart")
	case r.restartTimeout <= 0:
		return cli.UsageError("--restart-timeout %s is not positive", r.restartTimeout)
	case r.restartCommand != "" && !r.allowRestart:
		return cli.UsageError("--restart-command requires --restart")
	case r.restartMode == restartBySignal && r.OS == "windows":
		return cli.UsageError("--restart-mode %s is not supported on %s", r.restartMode, r.OS)
	case r.restartMode == restartBySignal && r.restartCommand != "":
		return cli.UsageError("--restart-command excludes --restart-mode %s", r.restartMode)
	}
	return nil
}

func (r *restarter) readRunning(ctx context.Context) (criclient.RunningConfig, error) {
	ctx, cancel := context.WithTimeout(ctx, r.restartTimeout)
	defer cancel()
	return criclient.ReadRunning(ctx, r.CRISocket)
}

// prepareRestart checks that containerd can be restarted and records that this is due, before the caller
// changes what containerd reads when it starts. Until [restarter.restart] succeeds, the next
// command restarts containerd again.
func (r *restarter) prepareRestart(ctx context.Context, record *containerd.ChangeRecord) error {
	if err := r.service(ctx).Check(ctx); err != nil {
		return err
	}
	record.BeginRestart()
	return record.Save(r.stateDir)
}

// restart restarts containerd, and records that.
func (r *restarter) restart(ctx context.Context, out io.Writer, record *containerd.ChangeRecord) error {
	if err := r.restartAndCheck(ctx, nil); err != nil {
		return fmt.Errorf("%w; run the command again to restart containerd", err)
	}
	fmt.Fprintln(out, "restarted containerd")
	record.EndRestart()
	return record.Save(r.stateDir)
}

// service returns containerd's service, as the flags select it. The first call determines the default,
// while containerd runs.
func (r *restarter) service(ctx context.Context) service.Service {
	switch {
	case r.restartCommand != "":
		return service.Command(r.restartCommand)
	case r.restartMode == restartBySignal:
		return service.BySignal(r.CRISocket, "containerd")
	}
	r.serviceName = cmp.Or(r.serviceName, service.NameBySocket(ctx, r.CRISocket), "containerd")
	return service.Named(r.serviceName)
}

// restartAndCheck restarts containerd and waits until it has loaded handlers that check accepts, or
// until it runs if check is nil.
func (r *restarter) restartAndCheck(ctx context.Context, check func(loaded []containerdconfig.Handler) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.restartTimeout)
	defer cancel()
	if err := r.service(ctx).Restart(ctx); err != nil {
		return err
	}
	for {
		running, err := criclient.ReadRunning(ctx, r.CRISocket)
		if err == nil && check != nil {
			err = check(running.Handlers)
		}
		noCRI := status.Code(err) == codes.Unimplemented // That will not change.
		switch {
		case err == nil || noCRI && check == nil:
			return nil
		case noCRI:
			return fmt.Errorf("containerd restarted without its CRI plugin: %w", err)
		}
		select {
		case <-ctx.Done():
			hint := ""
			if r.restartMode == restartBySignal && status.Code(err) == codes.Unavailable {
				hint = "; if no supervisor starts containerd again, start it, and do not use --restart-mode " + restartBySignal
			}
			return fmt.Errorf("containerd was restarted by %s, but has not loaded its configuration within %v: %w%s", r.service(ctx), r.restartTimeout, err, hint)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
